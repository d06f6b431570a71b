"""Frames of the tcp transport, and moving them without copies.

put      kind 1, layer, epoch, slot, number of runs | (first block, count) per run | the blocks' bytes
signal   kind 2, 0,     epoch, slot, puts
"""

import socket
import struct
from collections.abc import Sequence

PUT, SIGNAL = 1, 2
MOST_RUNS = 255  # one iovec each and one for the header: 256 in all, well under IOV_MAX

HEADER = struct.Struct("!BxHIII")
RUN = struct.Struct("!II")


def put_header(layer: int, epoch: int, slot: int, targets: Sequence[tuple[int, int]]) -> bytes:
    """Everything of a put but its payload. `targets`: (first block, count) per run, at most MOST_RUNS."""
    table = b"".join(RUN.pack(first, count) for first, count in targets)
    return HEADER.pack(PUT, layer, epoch, slot, len(targets)) + table


def signal_frame(epoch: int, slot: int, puts: int) -> bytes:
    return HEADER.pack(SIGNAL, 0, epoch, slot, puts)


def send_all(sock: socket.socket, views: list[memoryview]) -> None:
    """Send at most 256 views of bytes, whole. Raises OSError."""
    while views:
        sent = sock.sendmsg(views)
        views = _rest(views, sent)


def receive_into(sock: socket.socket, views: list[memoryview]) -> None:
    """Fill at most 256 views of bytes. Raises EOFError if the peer ends in their middle, OSError."""
    while views:
        received = sock.recvmsg_into(views)[0]
        if not received:
            raise EOFError
        views = _rest(views, received)


def _rest(views: list[memoryview], done: int) -> list[memoryview]:
    """What is left of `views` after so many bytes."""
    for index, view in enumerate(views):
        if done < view.nbytes:
            return [view[done:], *views[index + 1 :]]
        done -= view.nbytes
    return []
