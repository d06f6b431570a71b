"""Frames on a byte stream: a 4-byte big-endian length, then so many bytes. Length 0 is a heartbeat."""

from collections.abc import Iterator

HEARTBEAT = b"\0\0\0\0"
_HEADER = 4


class FrameTooLarge(Exception):
    """The peer announced a frame over the limit; the stream is unusable from here on."""


def frame(payload: bytes) -> bytes:
    """One frame holding the payload."""
    return len(payload).to_bytes(_HEADER, "big") + payload


class FrameReader:
    """Cuts what arrives into payloads. `limit` (bytes per frame) may be raised between feeds."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads completed by `data`, heartbeats (empty) included. Raises FrameTooLarge."""
        self._buffer += data
        start = 0
        try:
            while (payload := self._take(start)) is not None:
                start += _HEADER + len(payload)
                yield payload
        finally:
            del self._buffer[:start]

    def _take(self, start: int) -> bytes | None:
        body = start + _HEADER
        if len(self._buffer) < body:
            return None
        length = int.from_bytes(self._buffer[start:body], "big")
        if length > self.limit:
            raise FrameTooLarge(f"a frame of {length} bytes; at most {self.limit} are taken")
        if len(self._buffer) < body + length:
            return None
        return bytes(self._buffer[body : body + length])
