"""Pools and the anonymous memory they are made of."""

import fcntl
import mmap
import os

import pytest

from runtime.kv_link.memory import SharedMemory
from runtime.kv_link.pool import Pool
from tests.unit.kv_link.machines import LAYOUT


def test_blocks_lie_layer_by_layer() -> None:
    pool = Pool.over(LAYOUT, memory := bytearray(LAYOUT.total_bytes))
    pool.blocks(1, 2, 2)[:] = b"x" * 256
    start = 32 * 128 + 2 * 128
    assert memory.index(b"x") == start
    assert memory.count(b"x") == 256
    assert memory.rindex(b"x") == start + 255


def test_a_shared_pool_is_zeroed_and_writable_and_can_be_passed_on() -> None:
    pool = Pool.shared(LAYOUT)
    assert pool.fd is not None
    assert pool.memory.nbytes == LAYOUT.total_bytes
    assert not any(pool.memory)
    pool.memory[5] = 7
    peer = SharedMemory.received(os.dup(pool.fd), LAYOUT.total_bytes)
    assert peer.view[5] == 7
    peer.view[6] = 8
    assert pool.memory[6] == 8
    peer.close()
    pool.close()


def test_shared_memory_has_no_name_and_cannot_be_resized() -> None:
    memory = SharedMemory.create("test", 8192)
    assert "memfd:test (deleted)" in os.readlink(f"/proc/self/fd/{memory.fd}")
    for size in (4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)
    assert not os.get_inheritable(memory.fd)
    memory.close()


def test_close_gives_descriptor_and_mapping_back_once() -> None:
    memory = SharedMemory.create("test", 8192)
    fd = memory.fd
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(ValueError, match="released"):
        memory.view[0]
    other = os.open("/dev/null", os.O_RDONLY)  # takes the number: a second close must not close it
    memory.close()
    os.fstat(other)
    os.close(other)


def test_close_leaves_arrays_over_the_memory_alive() -> None:
    pool = Pool.shared(LAYOUT)
    array = pool.memory[:4]
    pool.close()
    array[0] = 9
    assert array[0] == 9


@pytest.mark.parametrize("size", [LAYOUT.total_bytes - 1, LAYOUT.total_bytes + 4096])
def test_memory_of_another_size_than_announced_is_not_mapped(size: int) -> None:
    memory = SharedMemory.create("test", size)
    with pytest.raises(ValueError, match="size"):
        SharedMemory.received(memory.fd, LAYOUT.total_bytes)
    memory.close()


def test_memory_that_could_shrink_under_us_is_not_mapped() -> None:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with pytest.raises(ValueError, match="size"):
        SharedMemory.received(fd, 4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    SharedMemory.received(fd, 4096).close()


def test_a_descriptor_that_is_no_memory_is_not_mapped() -> None:
    fd = os.open(os.devnull, os.O_RDWR)
    with pytest.raises(ValueError, match="memory"):
        SharedMemory.received(fd, 0)
    os.close(fd)


def test_a_pool_over_foreign_memory_must_fit() -> None:
    with pytest.raises(ValueError, match="writable"):
        Pool.over(LAYOUT, bytes(LAYOUT.total_bytes))
    with pytest.raises(ValueError, match=str(LAYOUT.total_bytes)):
        Pool.over(LAYOUT, bytearray(10))
    anonymous = mmap.mmap(-1, LAYOUT.total_bytes)
    assert Pool.over(LAYOUT, anonymous).fd is None


def test_too_little_memory_is_an_error_and_leaves_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):
        SharedMemory.create("test", 2**62)
    assert len(os.listdir("/proc/self/fd")) == before
