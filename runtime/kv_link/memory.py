"""Anonymous shared memory: no name, so nothing is left behind by a kill, and only who is handed the file
descriptor can map it. Sealed against resizing, so no peer can turn another's access into a SIGBUS.
"""

import contextlib
import fcntl
import mmap
import os

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedMemory:
    """`size` bytes mapped here. `fd` can be passed on; closing it does not undo the mapping."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, size)
        self.view = memoryview(self._map)
        self._closed = False

    @classmethod
    def create(cls, name: str, size: int) -> "SharedMemory":
        """New memory, zeroed. `name` shows in /proc only. Raises OSError if there is too little."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def received(cls, fd: int, size: int) -> "SharedMemory":
        """Map a descriptor that a peer passed, and own it from then on. Raises ValueError if it is not
        exactly what the peer announced."""
        try:
            if os.fstat(fd).st_size != size or not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError("the peer's shared memory is not of the size its layout says")
            return cls(fd, size)
        except OSError as error:
            raise ValueError(f"the peer's shared memory cannot be mapped: {error.strerror}") from error

    def close(self) -> None:
        """Give the descriptor back and the mapping too, unless arrays over it are still alive: then the
        mapping goes with the last of them."""
        if self._closed:
            return
        self._closed = True
        os.close(self.fd)
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()
