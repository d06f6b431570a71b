"""Rotary position embedding: query and key pairs (x[i], x[i + d/2]) are turned by position * frequency[i]."""

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]


class Rotary:
    """Tables for positions 0 to `context_tokens` - 1, computed in float64 and kept in float32."""

    def __init__(self, inverse_frequencies: tuple[float, ...], context_tokens: int) -> None:
        angles = np.outer(np.arange(context_tokens), np.array(inverse_frequencies))
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)

    def at(self, positions: NDArray[np.int64]) -> tuple[Float, Float]:
        """Cosines and sines for rows at these positions, [rows, 1, head_dim / 2] each."""
        return self._cos[positions, None], self._sin[positions, None]


def rotate(vectors: Float, cos: Float, sin: Float) -> Float:
    """Vectors [rows, heads, head_dim], turned."""
    half = vectors.shape[-1] // 2
    first, second = vectors[..., :half], vectors[..., half:]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
