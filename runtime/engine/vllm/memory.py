"""Where vLLM's KV-cache lies, seen as a pool of kv_link.

On a CPU the pool *is* the cache: vLLM's tensors are made to point into anonymous shared memory, so peers
of the same host can write blocks without a copy. On a GPU the pool is a mirror in host memory: a layer's
blocks are copied out as soon as the GPU has computed them and copied in when a transfer has arrived. The
GPU path has not run on a GPU.

Only whole blocks are ever touched. What lies inside one is the attention kernel's affair (on x86 CPUs the
keys are transposed, whatever the tensor's shape says), so it is named in `Layout.format`, never interpreted.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from runtime.kv_link.layout import Layout
from runtime.kv_link.pool import Pool


def block_bytes(tensor: torch.Tensor) -> int:
    """Bytes of one block of a layer. Raises ValueError unless a layer's blocks lie one behind the other."""
    size = int(tensor[0].numel()) * int(tensor.element_size())
    if int(tensor.stride(0)) * int(tensor.element_size()) != size or not tensor.is_contiguous():
        raise ValueError(
            f"vLLM's KV-cache does not lie layer after layer, block after block: shape "
            f"{tuple(tensor.shape)}, strides {tuple(tensor.stride())}; choose another attention backend"
        )
    return size


def move(tensors: Sequence[torch.Tensor], layers: Sequence[torch.Tensor], pool: Pool) -> None:
    """Let tensors that view the KV-cache view the pool instead. `layers`: one tensor per layer, in order;
    `tensors`: everything that must follow, the layers among them. Raises ValueError if one views neither.

    The memory is written once, so that the kernel hands out its pages now and no put waits for them."""
    storage = torch.frombuffer(pool.memory, dtype=torch.uint8).zero_().untyped_storage()
    homes = {tensor.data_ptr(): layer for layer, tensor in enumerate(layers)}
    moves = []
    for tensor in tensors:
        layer = homes.get(tensor.data_ptr())
        if layer is None:
            raise ValueError("vLLM computes with a view of the KV-cache that does not begin with a layer")
        moves.append((tensor, pool.layout.offset(layer, 0) // int(tensor.element_size())))
    for tensor, offset in moves:
        tensor.set_(storage, offset, tensor.size(), tensor.stride())


class SameMemory:
    """A CPU's saver: what the CPU has computed is in the pool already."""

    def save(self, layer: int, blocks: Sequence[int], then: Callable[[], None]) -> None:
        then()

    def flush(self) -> None:
        """Nothing is ever pending."""

    def load(self, blocks: Sequence[int]) -> None:
        """What a peer has put is in the cache already."""


class Mirror:
    """A GPU's saver: pinned host memory that follows the cache, one copy per layer on a stream of its own.

    vLLM's hooks run when a layer's kernels are launched, not when they are done: each copy waits for an
    event recorded at that moment, and the put waits for the copy's own event."""

    def __init__(self, layers: Sequence[torch.Tensor], pool: Pool, gpu: Any = torch.cuda) -> None:
        self._layers = [tensor.view(torch.uint8).view(tensor.shape[0], -1) for tensor in layers]
        host = torch.frombuffer(pool.memory, dtype=torch.uint8)
        self._host = list(host.view(len(layers), pool.layout.blocks, pool.layout.block_bytes))
        self._gpu = gpu
        self._stream = gpu.Stream()
        self._pending: list[tuple[Any, Callable[[], None]]] = []

    def save(self, layer: int, blocks: Sequence[int], then: Callable[[], None]) -> None:
        computed, copied = self._gpu.Event(), self._gpu.Event()
        computed.record(self._gpu.current_stream())
        self._stream.wait_event(computed)
        with self._gpu.stream(self._stream):
            for block in blocks:
                self._host[layer][block].copy_(self._layers[layer][block], non_blocking=True)
        copied.record(self._stream)
        self._pending.append((copied, then))
        self._settle(wait=False)

    def flush(self) -> None:
        self._settle(wait=True)

    def load(self, blocks: Sequence[int]) -> None:
        """Copy blocks that a peer has put from the mirror into the cache, before anything launched later."""
        for layer, host in zip(self._layers, self._host, strict=True):
            for block in blocks:
                layer[block].copy_(host[block], non_blocking=True)

    def _settle(self, *, wait: bool) -> None:
        """Offer copies in their order, as far as they are done."""
        while self._pending:
            copied, then = self._pending[0]
            if wait:
                copied.synchronize()
            elif not copied.query():
                return
            del self._pending[0]
            then()


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the bytes of the cache are, beyond what its tensors tell; fields as in `Layout`."""

    model: str
    revision: str
    format: str
    kv_heads: int
    head_dim: int
    block_tokens: int


def layout(tensors: Sequence[torch.Tensor], meaning: Meaning) -> Layout:
    """The pool that fits vLLM's tensors, one per layer in order. Raises ValueError if they differ."""
    sizes = {(block_bytes(tensor), int(tensor.shape[0])) for tensor in tensors}
    if len(sizes) != 1:
        raise ValueError("the model's layers keep KV-caches of different shapes, which is not supported")
    [(size, blocks)] = sizes
    return Layout(
        **asdict(meaning),
        dtype=str(tensors[0].dtype).removeprefix("torch."),
        layers=len(tensors),
        block_bytes=size,
        blocks=blocks,
    )
