"""From a row of logits to a token.

The order is the one that clients know from other engines: the model's own log-probabilities are kept for
the report; then bias, bans and penalties; then greedy choice, or temperature, min_p, top_k and top_p and
one draw. The draw for output token i comes from a generator keyed by (seed, i), so whoever computes token i,
on whichever machine, draws the same. Ties go to the lowest id.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from runtime.wire import Sampling, Token

Float = NDArray[np.float64]


def sample(
    logits: NDArray[np.float32],
    sampling: Sampling,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    end_tokens: frozenset[int],
) -> Token:
    """The token with output index len(output). Logits are finite, [vocabulary]."""
    raw = logits.astype(np.float64)
    scores = _adjusted(raw, sampling, prompt, output, end_tokens)
    if sampling.temperature == 0:
        chosen = int(np.argmax(scores))
    else:
        chosen = _drawn(scores / sampling.temperature, sampling, len(output))
    return _reported(chosen, raw, sampling.logprobs)


def _adjusted(
    raw: Float, sampling: Sampling, prompt: Sequence[int], output: Sequence[int], end_tokens: frozenset[int]
) -> Float:
    scores = raw.copy()
    for id, bias in sampling.logit_bias.items():
        scores[id] += bias
    if len(output) < sampling.min_tokens:
        scores[[*end_tokens, *sampling.stop_token_ids]] = -np.inf
    if sampling.repetition_penalty != 1:
        seen = np.unique([*prompt, *output])
        factor = np.where(scores[seen] > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
        scores[seen] *= factor
    if output and (sampling.presence_penalty or sampling.frequency_penalty):
        said, times = np.unique(output, return_counts=True)
        scores[said] -= sampling.presence_penalty + sampling.frequency_penalty * times
    return scores


def _drawn(scores: Float, sampling: Sampling, index: int) -> int:
    peak = scores.max()
    if not np.isfinite(peak):  # everything is banned, or a bias is infinite
        return int(np.argmax(scores))
    chances = np.exp(scores - peak)
    chances[chances < sampling.min_p] = 0
    ids = _nucleus(chances, sampling)
    mass = np.cumsum(chances[ids])
    key = np.array([sampling.seed % 2**64, index], np.uint64)
    draw = np.random.Generator(np.random.Philox(key=key)).random() * mass[-1]
    return int(ids[np.searchsorted(mass, draw, side="right")])


def _nucleus(chances: Float, sampling: Sampling) -> NDArray[np.intp]:
    """Ids that top_k and top_p leave, likeliest first; without either, all in order of id."""
    limited = 0 < sampling.top_k < len(chances)
    if not limited and sampling.top_p >= 1:
        return np.flatnonzero(chances)
    ids = _best(chances, sampling.top_k if limited else int(np.count_nonzero(chances)))
    before = np.cumsum(chances[ids]) - chances[ids]
    kept = before < sampling.top_p * chances[ids].sum()
    kept[0] = True
    return np.compress(kept & (chances[ids] > 0), ids)


def _best(values: Float, count: int) -> NDArray[np.intp]:
    """The ids of the `count` largest values, largest first, lowest id first among equals."""
    least = np.partition(values, len(values) - count)[len(values) - count]
    ids = np.flatnonzero(values >= least)
    return ids[np.argsort(-values[ids], kind="stable")][:count]


def _reported(chosen: int, raw: Float, alternatives: int) -> Token:
    if alternatives < 0:
        return Token(chosen)
    shifted = raw - raw.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    top = _best(logprobs, min(alternatives, len(raw))).tolist() if alternatives else []
    return Token(chosen, float(logprobs[chosen]), tuple((id, float(logprobs[id])) for id in top))
