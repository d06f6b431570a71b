"""KV between processes of one host: the peer maps our pool and writes it, truly one-sided.

The memory is handed over as file descriptors on a Unix socket, which then stays open as the peer's lease:
a farewell on it says that the peer has let go, the death of its process (pidfd) proves it. Nothing else
ends a writer; a peer that hangs keeps its blocks in quarantine.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from runtime.kv_link.layout import Layout
from runtime.kv_link.ledger import Ledger, ledger_bytes, signal
from runtime.kv_link.memory import SharedMemory
from runtime.kv_link.messages import Armed
from runtime.kv_link.pool import Pool
from runtime.kv_link.preface import REPLY_BYTES, WELCOME, check_welcome
from runtime.kv_link.runs import Run
from runtime.kv_link.tickets import Evidence, Ticket
from runtime.kv_link.transport import Place, SinkEvents, TransportError

_FAREWELL = b"\x02"
_BACKLOG = 128
_CREDENTIALS = struct.Struct("3i")
_ABSTRACT = "@"


class ShmSource:
    """The prompt machine's end: the peer's pool and ledger, mapped here."""

    name = "shm"

    def __init__(self, sock: socket.socket, pool: Pool, memory: SharedMemory, ledger: Ledger, peer: Layout):
        self._sock = sock
        self._pool = pool
        self._memory = memory
        self._ledger = ledger
        self._peer = peer

    def put(self, ticket: Armed, layer: int, runs: Sequence[Run]) -> None:
        for run in runs:
            start = self._peer.offset(layer, run.target)
            size = run.length * self._peer.block_bytes
            self._memory.view[start : start + size] = self._pool.blocks(layer, run.source, run.length)
            self._ledger.stamp(layer, run.target, run.length, ticket.epoch)

    def signal(self, ticket: Armed, puts: int) -> None:
        self._ledger.post(ticket.slot, signal(ticket.epoch, puts))

    def cut(self) -> None:
        """Nothing to do: a copy never blocks."""

    def close(self) -> None:
        self._ledger.close()
        self._memory.close()
        _farewell(self._sock)
        self._sock.close()


def _farewell(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the peer may be gone already
        sock.sendall(_FAREWELL)


class ShmSink:
    """The token machine's end: watches the writer."""

    name = "shm"

    def __init__(self, sock: socket.socket, place: Place, events: SinkEvents) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._ledger = place.ledger
        self._events = events
        self._pidfd = _writer(sock)
        assert place.pool.fd is not None
        try:
            socket.send_fds(sock, [WELCOME], [place.pool.fd, place.ledger.memory.fd])
        except OSError:
            os.close(self._pidfd)
            raise
        self._watching = {sock.fileno(), self._pidfd}
        self._loop.add_reader(sock.fileno(), self._heard)
        self._loop.add_reader(self._pidfd, self._ended, "the peer's process ended")

    def admit(self, ticket: Ticket) -> None:
        """Nothing to do: the peer writes as it likes; what it did is looked at in the end."""

    def settled(self, ticket: Ticket) -> bool:
        return True

    def evidence(self, ticket: Ticket) -> Evidence:
        missing = self._ledger.missing(ticket.blocks, ticket.epoch)
        return Evidence(word=self._ledger.word(ticket.slot), missing=missing)

    def dismiss(self, ticket: Ticket) -> bool:
        return True

    def force(self) -> bool:
        return False

    def close(self) -> None:
        for fd in self._watching:
            self._loop.remove_reader(fd)
        self._watching.clear()
        self._sock.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _heard(self) -> None:
        try:
            said = self._sock.recv(1)
        except OSError:
            said = b""
        if said == _FAREWELL:
            self._ended("the peer let go of our memory")
            return
        self._unwatch(self._sock.fileno())
        self._events.lost("the peer closed the data connection")

    def _ended(self, reason: str) -> None:
        self.close()
        self._events.gone(reason)

    def _unwatch(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self._watching.discard(fd)


def _writer(sock: socket.socket) -> int:
    """A pidfd of the process at the other end. A process id that was used anew meanwhile would only make us
    wait for longer than needed. Raises TransportError if it is not ours or cannot be watched."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.geteuid():
        raise TransportError(f"shm: the peer runs as user {uid}, we as {os.geteuid()}; run both as one user")
    if pid <= 0:
        raise TransportError(
            "shm: the peer's process cannot be seen from here, so its death would go unnoticed; "
            "let both pods share a process namespace"
        )
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise TransportError(f"shm: the peer's process cannot be watched: {error.strerror}") from error


class Shm:
    """See `Transport`."""

    name = "shm"
    needs_same_host = True

    def bind(self, place: Place) -> tuple[socket.socket, str] | None:
        if place.pool.fd is None:
            return None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            address = _address(place)
            listener.bind(_path(address))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise TransportError(f"shm: no Unix socket can be made in {place.run_dir}: {error}") from error
        return listener, address

    def connect(self, address: str, seconds: float) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(seconds)
            sock.connect(_path(address))
        except OSError:
            sock.close()
            raise
        return sock

    def serve(
        self, sock: socket.socket, place: Place, tickets: Iterable[Ticket], events: SinkEvents
    ) -> ShmSink:
        return ShmSink(sock, place, events)

    def open(self, sock: socket.socket, pool: Pool, peer: Layout, slots: int) -> ShmSource:
        reply, fds, _, _ = socket.recv_fds(sock, REPLY_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        with contextlib.ExitStack() as undo:
            undo.callback(_farewell, sock)
            for fd in fds:
                undo.callback(os.close, fd)
            check_welcome(reply)
            if len(fds) != 2:
                raise TransportError("shm: the peer passed no memory")
            try:
                memory = SharedMemory.received(fds[0], peer.total_bytes)
                written = SharedMemory.received(
                    fds[1], ledger_bytes(layers=peer.layers, blocks=peer.blocks, slots=slots)
                )
            except ValueError as error:
                raise TransportError(f"shm: {error}") from error
            undo.pop_all()
        ledger = Ledger(written, layers=peer.layers, blocks=peer.blocks, slots=slots)
        return ShmSource(sock, pool, memory, ledger, peer)

    def unbind(self, address: str) -> None:
        if not address.startswith(_ABSTRACT):
            Path(address).unlink(missing_ok=True)


def _path(address: str) -> str:
    return "\0" + address[1:] if address.startswith(_ABSTRACT) else address


def _address(place: Place) -> str:
    """Where to listen: in the run directory, where other pods may reach it, else in the abstract namespace.

    Sockets that a killed process of this name left behind are swept up."""
    if place.run_dir is None:
        return f"{_ABSTRACT}splitwise-kv-{secrets.token_hex(16)}"
    for old in place.run_dir.glob(f"{place.name}-*.kv.sock"):
        if _is_dead(old):
            old.unlink(missing_ok=True)
    return str(place.run_dir / f"{place.name}-{secrets.token_hex(4)}.kv.sock")


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
