"""The KV pool as arrays: per layer a region of blocks [2 (K, V), kv_heads, block_tokens, head_dim] float32.

The memory belongs to someone else (kv_link), and another process may write blocks of it.
"""

from mmap import mmap

import numpy as np
from numpy.typing import NDArray

from runtime.kv_link.layout import Layout

Float = NDArray[np.float32]
Index = NDArray[np.int64]


class KvCache:
    """Reads and writes a sequence's keys and values in the blocks of its table."""

    def __init__(self, layout: Layout, memory: bytearray | memoryview | mmap) -> None:
        self._block_tokens = layout.block_tokens
        self._heads = np.arange(layout.kv_heads)[:, None]
        shape = (layout.layers, layout.blocks, 2, layout.kv_heads, layout.block_tokens, layout.head_dim)
        self._blocks = np.frombuffer(memory, np.float32, count=layout.total_bytes // 4).reshape(shape)

    def write(self, layer: int, slots: Index, keys: Float, values: Float) -> None:
        """Keys and values [rows, kv_heads, head_dim] go to `slots` (block * block_tokens + place in it)."""
        block, place = np.divmod(slots, self._block_tokens)
        region = self._blocks[layer]
        region[block, 0, :, place] = keys
        region[block, 1, :, place] = values

    def read(self, layer: int, table: Index, tokens: int, padded: int) -> tuple[Float, Float]:
        """Keys and values [kv_heads, padded, head_dim] of a sequence's first `tokens` tokens; the rest is
        zero, whatever the blocks hold there."""
        used = table[None, : -(-tokens // self._block_tokens)]
        region = self._blocks[layer]
        return (
            _exactly(region[used, 0, self._heads], tokens, padded),
            _exactly(region[used, 1, self._heads], tokens, padded),
        )


def _exactly(blocks: Float, tokens: int, padded: int) -> Float:
    """Blocks [kv_heads, n, block_tokens, dim] as [kv_heads, padded, dim]."""
    kv_heads, count, block_tokens, dim = blocks.shape
    flat = blocks.reshape(kv_heads, count * block_tokens, dim)
    if flat.shape[1] < padded:
        longer = np.zeros((kv_heads, padded, dim), np.float32)
        longer[:, :tokens] = flat[:, :tokens]
        return longer
    flat[:, tokens:] = 0
    return flat[:, :padded]
