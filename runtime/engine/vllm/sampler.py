"""Choosing tokens so that nobody can tell which machine chose them: vLLM's logits-processor hook.

vLLM's own sampler draws from a generator that starts with the request, and counts as output only what it has
produced itself. A request that continues from another machine's token, or restarts behind tokens that the
client has seen, would go on differently. Here the draw for output token i depends on (seed, i) alone, and
penalties count all output, whoever produced it; greedy requests without penalties stay with vLLM.

The rules and their order are those of `runtime.engine.reference.sampling`, in torch so that they run where
the logits are. The chosen token is left as the only possible one; vLLM's log-probabilities are taken before.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

KEY = "splitwise"
"""Where `SamplingParams.extra_args` holds the fields of a `Choice`."""


@dataclass(slots=True)
class Choice:
    """How one request's tokens are chosen. `prior`: how many tokens at the end of vLLM's prompt are output.
    `forced`: what the first token is, if another machine has sampled it already; -1 for none."""

    seed: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    prior: int = 0
    forced: int = -1

    def draws(self, vocabulary: int, limited: bool) -> bool:
        """Whether tokens are drawn: from among all, or (`limited`) from what top_k and top_p leave."""
        return self.temperature > 0 and limited == (0 < self.top_k < vocabulary or self.top_p < 1)


@dataclass(slots=True)
class _Row:
    choice: Choice
    prompt: list[int]
    output: list[int]

    @property
    def said(self) -> list[int]:
        """All output so far, whoever produced it."""
        prior = self.choice.prior
        return [*self.prompt[len(self.prompt) - prior :], *self.output]


class ExactSampler(LogitsProcessor):  # type: ignore[misc]
    """Made by vLLM, once, beside the model."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, prompt, output in batch_update.added:
            self._rows.pop(index, None)
            if choice := (params.extra_args or {}).get(KEY):
                self._rows[index] = _Row(choice, prompt, output)
        for source, target, direction in batch_update.moved:
            here, there = self._rows.pop(source, None), self._rows.pop(target, None)
            if here is not None:
                self._rows[target] = here
            if there is not None and direction is MoveDirectionality.SWAP:
                self._rows[source] = there

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._rows:
            indices = sorted(self._rows)
            chosen = choose(logits[indices].double(), [self._rows[index] for index in indices])
            logits[indices] = float("-inf")
            logits[indices, chosen] = 0.0
        return logits


def choose(scores: torch.Tensor, rows: list[_Row]) -> torch.Tensor:
    """The token of each row. Scores are float64, [rows, vocabulary], and are used up."""
    said = [row.said for row in rows]
    for score, row, output in zip(scores, rows, said, strict=True):
        _penalise(score, row, output)
    chosen = scores.argmax(dim=-1)
    for limited in (False, True):  # apart, for one row's order of summing must not depend on its neighbours
        drawing = [place for place, row in enumerate(rows) if row.choice.draws(scores.shape[-1], limited)]
        if drawing:
            draws = [_draw(rows[place].choice.seed, len(said[place])) for place in drawing]
            chosen[drawing] = _drawn(
                scores[drawing], [rows[place].choice for place in drawing], draws, limited
            )
    for place, row in enumerate(rows):
        if row.choice.forced >= 0 and not row.output:
            chosen[place] = row.choice.forced
    return chosen


def _penalise(score: torch.Tensor, row: _Row, said: list[int]) -> None:
    choice = row.choice
    if choice.repetition_penalty != 1:
        seen = torch.tensor(sorted({*row.prompt, *said}), device=score.device)
        values = score[seen]
        score[seen] = torch.where(
            values > 0, values / choice.repetition_penalty, values * choice.repetition_penalty
        )
    if said and (choice.presence_penalty or choice.frequency_penalty):
        ids, times = torch.tensor(said, device=score.device).unique(return_counts=True)
        score[ids] -= choice.presence_penalty + choice.frequency_penalty * times


def _drawn(scores: torch.Tensor, choices: list[Choice], draws: list[float], limited: bool) -> torch.Tensor:
    """One draw per row among what min_p, top_k and top_p leave; the likeliest where nothing is left."""

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=scores.dtype, device=scores.device).unsqueeze(-1)

    scores = scores / column([choice.temperature for choice in choices])
    peak = scores.max(dim=-1, keepdim=True).values
    chances = (scores - peak).exp().nan_to_num(0.0)
    chances[chances < column([choice.min_p for choice in choices])] = 0.0
    ids = None
    if limited:
        chances, ids = chances.sort(dim=-1, descending=True, stable=True)
        _cut(chances, choices, column)
    mass = chances.cumsum(dim=-1)
    places = torch.searchsorted(mass, column(draws) * mass[:, -1:], right=True).clamp(max=mass.shape[-1] - 1)
    chosen = (places if ids is None else ids.gather(-1, places)).squeeze(-1)
    return torch.where(peak.squeeze(-1).isfinite(), chosen, scores.argmax(dim=-1))


def _cut(chances: torch.Tensor, choices: list[Choice], column: Any) -> None:
    """Set to zero what top_k and then top_p leave out of rows sorted by falling chance."""
    vocabulary = chances.shape[-1]
    place = torch.arange(vocabulary, device=chances.device)
    chances[place >= column([choice.top_k or vocabulary for choice in choices])] = 0.0
    before = chances.cumsum(dim=-1) - chances
    beyond = before >= column([choice.top_p for choice in choices]) * chances.sum(dim=-1, keepdim=True)
    beyond[:, 0] = False
    beyond &= column([choice.top_p for choice in choices]) < 1
    chances[beyond] = 0.0


def _draw(seed: int, index: int) -> float:
    """A number in [0, 1) for output token `index`: the reference engine's, so that seeds mean the same."""
    key = np.array([seed % 2**64, index], np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key)).random())
