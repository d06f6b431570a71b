"""The keys by which the peers of a deployment know each other, in a file that may change while we run.

One key per line. A listener shows that it knows the first; a caller accepts any. So a key that all files
hold can be moved to the front, and one that is first in no file any more can be dropped: a deployment's key
is replaced without a restart and without a pair that refuses each other on the way.
"""

from pathlib import Path

from runtime import log

KEY_BYTES = 32
logger = log.logger("link")


class Keyring:
    """The keys in a file. It is read at every handshake, so nobody has to be told that it was replaced."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError with a sentence if the file is missing or holds no usable key."""
        self._path = path
        self._keys = _read(path)
        self._trouble = ""

    def keys(self) -> tuple[bytes, ...]:
        """The keys as the file has them now, the one to show first; the last good ones if it has none."""
        try:
            self._keys, self._trouble = _read(self._path), ""
        except ValueError as error:
            if str(error) != self._trouble:
                logger.warning("the link's keys stay as they were", error=str(error))
            self._trouble = str(error)
        return self._keys


def keys_of(secret: "Keyring | bytes") -> tuple[bytes, ...]:
    """The keys to use now; bytes are one key for good."""
    return (secret,) if isinstance(secret, bytes) else secret.keys()


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        keys = tuple(line.strip() for line in path.read_bytes().split(b"\n") if line.strip())
    except OSError as error:
        raise ValueError(f"link secret {path}: {error.strerror}") from error
    shortest = min((len(key) for key in keys), default=0)
    if shortest < KEY_BYTES:
        raise ValueError(
            f"link secret {path}: a key of {shortest} bytes; write at least {KEY_BYTES} random letters, "
            "one key per line"
        )
    return keys
