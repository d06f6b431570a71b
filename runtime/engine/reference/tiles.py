"""Matrix products whose rows do not notice each other.

A BLAS rounds a row differently depending on how many rows it is multiplied with, and, for many sizes, on
its place among them. So rows are always multiplied in tiles of one fixed number of rows, filled up with
zeros, and that number is the largest for which this machine's BLAS, asked with the model's own matrices,
gives a row the same bits at every place and beside any neighbours.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]

CANDIDATES = (16, 12, 8, 4, 1)


class Tiles:
    """Products in tiles of `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    @classmethod
    def fitting(cls, matrices: Iterable[Float]) -> "Tiles":
        """The largest tile that is safe for all these matrices ([in, out])."""
        several = list(matrices)
        return next(Tiles(rows) for rows in CANDIDATES if all(_safe(rows, matrix) for matrix in several))

    def padded(self, rows: Float) -> Float:
        """The rows with zero rows behind them, up to whole tiles."""
        count, width = rows.shape
        whole = np.zeros((-(-count // self.rows) * self.rows, width), np.float32)
        whole[:count] = rows
        return whole

    def product(self, rows: Float, matrix: Float) -> Float:
        """`rows @ matrix`, where rows came from `padded` or from a `product`."""
        tiles = rows.reshape(-1, self.rows, rows.shape[1])
        product: Float = np.matmul(tiles, matrix).reshape(len(rows), matrix.shape[1])
        return product


def _safe(rows: int, matrix: Float) -> bool:
    """Whether a row's product is the same bits everywhere in a tile, whatever lies beside it."""
    if rows == 1:
        return True
    rng = np.random.default_rng(rows)
    tile = rng.standard_normal((1, rows, matrix.shape[0]), dtype=np.float32)
    expected = np.matmul(tile, matrix)[0]
    for shift in range(1, rows):
        moved = np.roll(tile, shift, axis=1)
        if not np.array_equal(np.roll(np.matmul(moved, matrix)[0], -shift, axis=0), expected):
            return False
    alone = np.zeros_like(tile)
    alone[0, -1] = tile[0, 0]
    first, second = np.matmul(np.concatenate((alone, tile)), matrix)
    return np.array_equal(first[-1], expected[0]) and np.array_equal(second, expected)
