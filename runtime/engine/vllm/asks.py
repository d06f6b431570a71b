"""What the engine asks of vLLM's core, and what comes back; no vLLM in it."""

from dataclasses import dataclass

from runtime.wire import Sampling, Token


@dataclass(frozen=True, slots=True)
class Ask:
    """One request as vLLM sees it: `tokens`, the last `prior` of which are output already, then up to
    `max_tokens` more. `private`: its KV must neither come from nor go to vLLM's prefix cache.
    `first_is_known`: another machine samples the first of the tokens to come."""

    id: str
    tokens: list[int]
    sampling: Sampling
    stops: frozenset[int]
    max_tokens: int
    prior: int = 0
    private: bool = False
    first_is_known: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """New tokens of a request. `end` is vLLM's reason: stop, length, abort, error or None."""

    id: str
    tokens: tuple[Token, ...]
    end: str | None
