"""The seam to whatever computes tokens: the reference engine here, vLLM beside it.

A machine owns one engine and calls it from one thread. It submits `Work`, asks for `step()` while there is
something to do, and reads the `News` that each step returns. The engine owns the KV blocks; `kv_link` moves
their bytes between machines and tells, through the machine, when blocks are filled, drained or fenced.

Life of a split request, seen from the two engines:

    token machine                               prompt machine
    submit(phase="token")
    -> Reserved(blocks)     ... ticket ...      submit(phase="prompt", put=...)
                                                -> put.begin, put.layer per layer, put.seal
                                                -> Sampled(first token, end="handoff")
    arrived(id, first)      ... KV is there     drained(id): its blocks may be reused
    -> Sampled(second token) ...

Block ownership (the fence of kv_link): blocks reserved for a transfer go back to the allocator only when the
work is over AND `arrived` or `fenced` was called; blocks being put from only when `drained` was called.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runtime.kv_link.layout import Layout
from runtime.wire import End, Load, Phase, Sampling, Token


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine serves. `context_tokens` bounds prompt plus output."""

    model: str
    context_tokens: int
    vocabulary: int
    end_tokens: frozenset[int]
    layout: Layout


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Machine-level limits: prompt tokens per batch (2,048, paper section IV-B) and sequences per batch."""

    prompt_batch_tokens: int = 2048
    sequences: int = 64


class LayerPut(Protocol):
    """Where a prompt's KV goes, as the engine sees it; kv_link implements it.

    Called on the engine's thread, never blocks: bytes move on another thread, out of blocks that stay pinned
    until `drained`."""

    def begin(self, batch_tokens: int) -> None:
        """Before the first chunk's compute: choose serialized or layer-wise for a batch of so many tokens."""

    def layer(self, layer: int, first: int, blocks: Sequence[int]) -> None:
        """Logical blocks first, first+1, ... of the sequence are filled for this layer and lie in `blocks`.
        Called once for every (layer, logical block), in order of layers within a chunk."""

    def seal(self, first_token: Token) -> None:
        """Everything has been offered and the first token is known."""

    def abort(self, reason: str) -> None:
        """Nothing more comes; what was put is worthless. Harmless after `seal` or another `abort`."""


@dataclass(slots=True)
class Work:
    """One leg of a request. `id` is unique on this machine; `tokens` is the prompt followed by `generated`
    (output that the client has already seen, counted as output by penalties, min_tokens and max_tokens).
    `put` is set for phase "prompt" unless the sampling allows only one more token."""

    id: str
    phase: Phase
    prompt: list[int]
    sampling: Sampling
    generated: list[int] = field(default_factory=list)
    put: LayerPut | None = None

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.generated


@dataclass(frozen=True, slots=True)
class Reserved:
    """Phase "token": these blocks (logical order) are set aside and may be written by a peer. They cover the
    KV of all of `Work.tokens`: ceil(len(tokens) / block_tokens) blocks."""

    id: str
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """New tokens of a work, and its end if these were the last. After an end the work is gone, save for
    blocks that wait for `drained` or `fenced`. Phase "prompt" ends with its first token: "handoff", or
    "stop"/"length" if that token already finished the request."""

    id: str
    tokens: tuple[Token, ...]
    end: End | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine gave a work up; `code` is one of runtime.errors."""

    id: str
    code: str
    message: str


News = Reserved | Sampled | Failed


class Engine(Protocol):
    """Not thread-safe: one thread calls everything. No call but `step` takes long."""

    info: EngineInfo

    def submit(self, work: Work) -> None:
        """Queue a work, first come first served within its phase. Raises InvalidRequest if it can never run
        (longer than the context or than the whole KV pool, token ids outside the vocabulary)."""

    def cancel(self, id: str) -> None:
        """Forget a work at once (unknown ids are ignored). Blocks that a peer may still write stay
        quarantined until `fenced`; blocks still being put from, until `drained`."""

    def arrived(self, id: str, first: Token) -> None:
        """Phase "token": the KV of the prompt is in the reserved blocks and no peer writes them any more.
        Decoding goes on behind `first`, which is not reported again."""

    def fenced(self, id: str) -> None:
        """No peer can write this work's reserved blocks any more."""

    def drained(self, id: str) -> None:
        """No put reads this work's blocks any more."""

    def step(self) -> list[News]:
        """Reserve what fits, then run at most one batch. Prompts go first."""

    def busy(self) -> bool:
        """Whether `step` could do anything now."""

    def load(self) -> Load:
        """Counts for reports and metrics."""

    def close(self) -> None:
        """Let go of the KV memory and whatever else is held. No call may follow."""
