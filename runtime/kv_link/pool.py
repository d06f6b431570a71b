"""The KV pool of a machine: where the engine computes and peers put."""

from typing import TYPE_CHECKING, Self

from runtime.kv_link.layout import Layout
from runtime.kv_link.memory import SharedMemory

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Pool:
    """`memory` is a writable byte view of `layout.total_bytes`, layer 0 first. Only a pool made by `shared`
    has an `fd`, hence can be written by peers of the same host without a copy through a socket."""

    def __init__(self, layout: Layout, memory: memoryview, shared: SharedMemory | None) -> None:
        self.layout = layout
        self.memory = memory
        self._shared = shared

    @classmethod
    def shared(cls, layout: Layout) -> Self:
        """A pool in anonymous shared memory. Raises OSError if there is too little of it."""
        shared = SharedMemory.create("splitwise-kv", layout.total_bytes)
        return cls(layout, shared.view, shared)

    @classmethod
    def over(cls, layout: Layout, buffer: "ReadableBuffer") -> Self:
        """A pool in memory that someone else owns. Raises ValueError if it is read-only or does not fit."""
        memory = memoryview(buffer).cast("B")
        if memory.readonly or memory.nbytes != layout.total_bytes:
            raise ValueError(f"a pool of {layout.total_bytes} writable bytes is needed, not {memory.nbytes}")
        return cls(layout, memory, None)

    @property
    def fd(self) -> int | None:
        return self._shared.fd if self._shared else None

    def blocks(self, layer: int, first: int, count: int) -> memoryview:
        """The bytes of `count` neighbouring blocks of a layer."""
        start = self.layout.offset(layer, first)
        return self.memory[start : start + count * self.layout.block_bytes]

    def close(self) -> None:
        """Let the memory go; arrays over it stay valid until they are dropped."""
        if self._shared:
            self._shared.close()
