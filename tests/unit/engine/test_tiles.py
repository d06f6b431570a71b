"""Products whose rows do not notice each other."""

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.engine.reference import blas, tiles
from runtime.engine.reference.tiles import Tiles

Float = NDArray[np.float32]
SHAPES = [(64, 128), (64, 384), (576, 960), (100, 36)]


def matrix(shape: tuple[int, int]) -> Float:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_gives_the_same_bits_in_any_company(shape: tuple[int, int]) -> None:
    weights = matrix(shape)
    chosen = Tiles.fitting([weights])
    rng = np.random.default_rng(4)
    row = rng.standard_normal((1, shape[0]), dtype=np.float32)
    expected = chosen.product(chosen.padded(row), weights)[0]
    for count in range(1, 40):
        rows = rng.standard_normal((count, shape[0]), dtype=np.float32)
        place = int(rng.integers(count))
        rows[place] = row
        product = chosen.product(chosen.padded(rows), weights)
        np.testing.assert_array_equal(product[place], expected)
        np.testing.assert_allclose(product[:count], rows @ weights, atol=1e-3)


def test_padding_is_zero_and_whole_tiles() -> None:
    padded = Tiles(8).padded(np.ones((9, 3), np.float32))
    assert padded.shape == (16, 3)
    assert padded[:9].all()
    assert not padded[9:].any()


def test_the_largest_safe_tile_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = matrix((64, 64)), matrix((64, 128))
    limits = {id(few): 12, id(many): 4}
    monkeypatch.setattr(tiles, "_safe", lambda rows, weights: rows <= limits[id(weights)])
    assert Tiles.fitting([few]).rows == 12
    assert Tiles.fitting([few, many]).rows == 4
    monkeypatch.setattr(tiles, "_safe", lambda rows, weights: rows == 1)
    assert Tiles.fitting([few]).rows == 1


@pytest.mark.parametrize("fault", ["place", "neighbours", "tiles"])
def test_an_unsafe_product_is_noticed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A BLAS that rounds by place, by neighbours, or by the number of tiles."""
    exact = np.matmul

    def rounding(stack: Float, weights: Float) -> Float:
        product: Float = exact(stack, weights)
        if fault == "place":
            product[:, -1] *= np.float32(1 + 1e-6)
        elif (fault == "neighbours" and not stack.all()) or (fault == "tiles" and len(stack) > 1):
            product *= np.float32(1 + 1e-6)
        return product

    monkeypatch.setattr(np, "matmul", rounding)
    assert Tiles.fitting([matrix((64, 128))]).rows == 1


def test_one_thread_from_now_on() -> None:
    blas.use_one_thread()
    assert blas.threads() in (1, None)
