"""A forward pass of the Llama family over a batch of rows from many sequences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.engine.reference.attention import attend, padded_tokens
from runtime.engine.reference.kv import KvCache
from runtime.engine.reference.rotary import Rotary, rotate
from runtime.engine.reference.tiles import Tiles
from runtime.engine.reference.weights import Weights

Float = NDArray[np.float32]
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one sequence: the first is at position `start`, its KV lies in `table`'s blocks.
    `sample`: whether the logits behind the last one are wanted."""

    tokens: Sequence[int]
    start: int
    table: Index
    sample: bool

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Model:
    """The model over a KV cache. `context_tokens` bounds positions."""

    def __init__(self, weights: Weights, cache: KvCache, *, block_tokens: int, context_tokens: int) -> None:
        self._shape = weights.architecture
        self._cache = cache
        self._block_tokens = block_tokens
        self._rotary = Rotary(self._shape.inverse_frequencies, context_tokens)
        self._head, self._norm = weights["head"], weights["norm"]
        self._embed = self._head.T if self._shape.tied else weights["embed"]
        self._layers = [_Layer.of(weights, layer) for layer in range(self._shape.layers)]
        self._tiles = Tiles.fitting([*self._layers[0].matrices(), self._head])

    @property
    def tile_rows(self) -> int:
        """Rows per product; see `tiles`."""
        return self._tiles.rows

    def forward(self, segments: Sequence[Segment], after_layer: Callable[[int], None]) -> Float:
        """Logits [segments with `sample`, vocabulary], after writing the KV of every row.
        `after_layer` is called when the KV of a layer is complete for all segments."""
        with np.errstate(all="ignore"):  # whoever samples looks whether the logits are finite
            rows = self._embed[np.concatenate([segment.tokens for segment in segments])]
            place = self._place(segments)
            rows = self._tiles.padded(rows)
            for layer, parts in enumerate(self._layers):
                rows += self._attention(layer, parts, rows, segments, place)
                rows += self._feed_forward(parts, rows)
                after_layer(layer)
            ends = np.cumsum([len(segment.tokens) for segment in segments])
            wanted = [end - 1 for end, segment in zip(ends, segments, strict=True) if segment.sample]
            last = self._tiles.padded(rows[wanted])
            logits = self._tiles.product(self._normed(last, self._norm), self._head)
            return logits[: len(wanted)]

    def _place(self, segments: Sequence[Segment]) -> "_Place":
        spans = [np.arange(segment.start, segment.end) for segment in segments]
        blocks = [seg.table[span // self._block_tokens] for seg, span in zip(segments, spans, strict=True)]
        positions = np.concatenate(spans)
        slots = np.concatenate(blocks) * self._block_tokens + positions % self._block_tokens
        return _Place(slots, *self._rotary.at(positions))

    def _attention(
        self, layer: int, parts: "_Layer", rows: Float, segments: Sequence[Segment], place: "_Place"
    ) -> Float:
        shape, count = self._shape, len(place.slots)
        joint = self._tiles.product(self._normed(rows, parts.norm1), parts.qkv)
        if parts.qkv_bias is not None:
            joint += parts.qkv_bias
        heads = joint[:count].reshape(count, -1, shape.head_dim)
        queries, keys, values = np.split(heads, [shape.heads, shape.heads + shape.kv_heads], axis=1)
        queries = rotate(queries, place.cos, place.sin)
        self._cache.write(layer, place.slots, rotate(keys, place.cos, place.sin), values)
        mixed = np.zeros((len(rows), shape.heads * shape.head_dim), np.float32)
        first = 0
        for segment in segments:
            last = first + len(segment.tokens)
            known = self._cache.read(layer, segment.table, segment.end, padded_tokens(segment.end))
            mixed[first:last] = attend(queries[first:last], *known, segment.start).reshape(last - first, -1)
            first = last
        return self._tiles.product(mixed, parts.out)

    def _feed_forward(self, parts: "_Layer", rows: Float) -> Float:
        gate, up = np.split(self._tiles.product(self._normed(rows, parts.norm2), parts.gate_up), 2, axis=1)
        return self._tiles.product(gate / (1 + np.exp(-gate)) * up, parts.down)

    def _normed(self, rows: Float, weight: Float) -> Float:
        """Root-mean-square normalisation of each row."""
        mean = np.mean(rows * rows, axis=1, keepdims=True)
        normed: Float = rows / np.sqrt(mean + np.float32(self._shape.norm_eps)) * weight
        return normed


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the batch's rows go in the cache, and how they are turned."""

    slots: Index
    cos: Float
    sin: Float


@dataclass(frozen=True, slots=True)
class _Layer:
    norm1: Float
    qkv: Float
    qkv_bias: Float | None
    out: Float
    norm2: Float
    gate_up: Float
    down: Float

    @classmethod
    def of(cls, weights: Weights, layer: int) -> "_Layer":
        bias = weights[f"{layer}.qkv_bias"] if weights.architecture.qkv_bias else None
        names = ("norm1", "qkv", "out", "norm2", "gate_up", "down")
        return cls(qkv_bias=bias, **{name: weights[f"{layer}.{name}"] for name in names})

    def matrices(self) -> tuple[Float, ...]:
        return self.qkv, self.out, self.gate_up, self.down
