"""Causal attention of one sequence, in tiles of queries that are aligned to positions.

Row p of a sequence is always computed as row p % TILE of the tile that begins at p - p % TILE, against keys
0 to the end of that tile, with later keys masked and keys that do not exist yet zero. So the shapes, and
with them the rounding, depend on p alone: not on the chunk that p came in, nor on whether it was a row of
a prompt or a token's step.
"""

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]

TILE = 8
_FUTURE = np.triu(np.full((TILE, TILE), -np.inf, np.float32), k=1)


def padded_tokens(tokens: int) -> int:
    """How many keys the last tile of a context of so many tokens looks at."""
    return -(-tokens // TILE) * TILE


def attend(queries: Float, keys: Float, values: Float, start: int) -> Float:
    """Queries [rows, heads, dim] at positions start, start+1, ... over keys and values
    [kv_heads, padded_tokens(start + rows), dim] -> [rows, heads, dim].

    Heads share KV heads in groups of heads / kv_heads."""
    rows, heads, dim = queries.shape
    kv_heads = keys.shape[0]
    grouped = queries.reshape(rows, kv_heads, heads // kv_heads, dim) * np.float32(dim**-0.5)
    out = np.empty((rows, kv_heads, heads // kv_heads, dim), np.float32)
    for first in range(start - start % TILE, start + rows, TILE):
        low, high = max(start, first), min(start + rows, first + TILE)
        seen = first + TILE
        out[low - start : high - start] = _tile(
            grouped[low - start : high - start], keys[:, :seen], values[:, :seen], low - first
        )
    return out.reshape(rows, heads, dim)


def _tile(queries: Float, keys: Float, values: Float, offset: int) -> Float:
    """Queries [rows, kv_heads, group, dim] that are rows offset, offset+1, ... of the tile."""
    rows, kv_heads, group, dim = queries.shape
    seen = keys.shape[1]
    inside = slice(offset, offset + rows)
    tile = np.zeros((kv_heads, group, TILE, dim), np.float32)
    tile[:, :, inside] = queries.transpose(1, 2, 0, 3)
    scores = tile.reshape(kv_heads, group * TILE, dim) @ keys.transpose(0, 2, 1)
    # Exponentials cost most, so only rows that were asked for get them; the products keep their full shape.
    weights = np.ascontiguousarray(scores.reshape(kv_heads, group, TILE, seen)[:, :, inside])
    weights[..., -TILE:] += _FUTURE[inside]
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    full = np.zeros((kv_heads, group, TILE, seen), np.float32)
    full[:, :, inside] = weights
    mixed = (full.reshape(kv_heads, group * TILE, seen) @ values).reshape(kv_heads, group, TILE, dim)
    result: Float = mixed[:, :, inside] / weights.sum(axis=-1, keepdims=True)
    return result.transpose(2, 0, 1, 3)
