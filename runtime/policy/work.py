"""The nouns of scheduling: what a request asks for, what we believe a machine is doing, and a decision."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["prompt", "token", "mixed"]
Degraded = Literal["fail", "mixed", "recompute"]


@dataclass(frozen=True, slots=True)
class Request:
    """What routing needs to know of a request. `output_tokens` is the most it may still produce."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """The router's books for one machine: tokens it was given and has not finished.

    pending_prompt_tokens: prompt tokens sent and not yet computed. pending_token_tokens: one for each
    request in its token phase, as in the paper's simulator. kv_tokens: context tokens it holds or will hold.
    kv_tokens_total: how many fit."""

    name: str
    role: Role
    revision: str
    pending_prompt_tokens: int = 0
    pending_token_tokens: int = 0
    kv_tokens: int = 0
    kv_tokens_total: int = 0

    @property
    def pending_tokens(self) -> int:
        return self.pending_prompt_tokens + self.pending_token_tokens


@dataclass(frozen=True, slots=True)
class Route:
    """Where the two phases run; one machine may hold both. `why` is a sentence for a person."""

    prompt: str
    token: str
    why: str

    @property
    def split(self) -> bool:
        return self.prompt != self.token


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Nobody can take it now. `why` is a sentence for a person."""

    why: str
