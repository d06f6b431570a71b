"""How a prompt's KV-cache travels: all at the end, or layer by layer behind the compute (paper section IV-C).

A serialized transfer is visible in full, so its time grows with the prompt; a layer-wise one leaves a
constant. The switch point is where the first crosses the second: 512 prompt tokens of a batch on H100, as
in the paper, until measurements say otherwise.
"""

from collections import deque
from dataclasses import dataclass
from statistics import linear_regression, median
from typing import Literal

Mode = Literal["serialized", "layerwise"]

SWITCH_TOKENS = 512


def choose(batch_tokens: int, switch_tokens: int = SWITCH_TOKENS) -> Mode:
    """Serialized below the switch point, layer-wise from it on; tokens of the whole batch, as its
    transfers share the link."""
    return "layerwise" if batch_tokens >= switch_tokens else "serialized"


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A KV link in numbers: what a token weighs, how fast bytes move, and what each mode costs besides.

    The fixed seconds are paid once per transfer, whatever its size (event, put, signal, verification)."""

    bytes_per_token: float
    bytes_per_second: float
    serialized_fixed: float = 0.0
    layerwise_fixed: float = 0.0

    def wire_seconds(self, tokens: float) -> float:
        """Seconds the KV of so many tokens needs on the link."""
        return tokens * self.bytes_per_token / self.bytes_per_second


def visible_serialized(link: LinkModel, tokens: float) -> float:
    """Seconds between the last layer's compute and the KV being whole at the token machine."""
    return link.serialized_fixed + link.wire_seconds(tokens)


def visible_layerwise(link: LinkModel, tokens: float, *, layers: int, compute_seconds: float) -> float:
    """As `visible_serialized`, with layers sent behind a compute of `compute_seconds`.

    A link that keeps up leaves the last layer only; a slower one leaves everything it could not send
    between the end of the first layer and the end of the last."""
    layer = link.wire_seconds(tokens) / layers
    backlog = layers * layer - (layers - 1) * compute_seconds / layers
    return link.layerwise_fixed + max(layer, backlog)


def switch_point(link: LinkModel, layerwise_seconds: float) -> int:
    """The batch, in tokens, from which a serialized transfer would show longer than `layerwise_seconds`,
    the constant measured for layer-wise ones. 0 if it always would."""
    hidden = layerwise_seconds - link.serialized_fixed
    return max(0, round(hidden * link.bytes_per_second / link.bytes_per_token))


class Calibration:
    """Recomputes the switch point from what transfers really left visible.

    Keeps the latest `window` samples of each mode and says `default` until there are `enough` of both and
    they make a line that rises. The result stays within a factor of 8 of the default, so that both modes
    keep being sampled and a few odd ones cannot switch a mode off for good."""

    def __init__(self, default: int = SWITCH_TOKENS, *, window: int = 64, enough: int = 16) -> None:
        self._default = default
        self._enough = enough
        self._serialized: deque[tuple[int, float]] = deque(maxlen=window)
        self._layerwise: deque[float] = deque(maxlen=window)

    def observe(self, mode: Mode, batch_tokens: int, visible_seconds: float) -> None:
        """One finished transfer."""
        if mode == "serialized":
            self._serialized.append((batch_tokens, visible_seconds))
        else:
            self._layerwise.append(visible_seconds)

    @property
    def switch_tokens(self) -> int:
        """The switch point to use now."""
        if min(len(self._serialized), len(self._layerwise)) < self._enough:
            return self._default
        tokens, seconds = zip(*self._serialized, strict=True)
        if min(tokens) == max(tokens):
            return self._default
        line = linear_regression(tokens, seconds)
        if line.slope <= 0:
            return self._default
        link = LinkModel(
            bytes_per_token=1.0, bytes_per_second=1 / line.slope, serialized_fixed=line.intercept
        )
        crossing = switch_point(link, median(self._layerwise))
        return min(max(crossing, self._default // 8), self._default * 8)
