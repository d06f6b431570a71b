"""What the router and the machines say to each other.

One connection per (router process, machine) carries every request between them (`runtime.link`). The
router opens a stream with `Start`, may end it with `Cancel`, and grants output with `Credit`; the machine
answers with one `Step` per engine step, holding the news of every stream that the step moved.
Machines speak token ids only: text, stop strings and chat templates live in the router.
"""

from typing import Literal

from msgspec import Struct

Phase = Literal["prompt", "token", "whole"]
"""Which part of a request a leg is: its prompt phase, its token phase, or both on one machine."""

End = Literal["stop", "length", "handoff", "error"]
"""Why a leg ended: an end or stop token, max_tokens, the token machine took over, or a failure."""

FINISHED = "finished"
"""Why a KV-cache is not needed after all: the first token ended the request. No failure, nothing to redo."""


class Sampling(Struct, frozen=True, omit_defaults=True):
    """How tokens are chosen; names and meaning as in the OpenAI API and its common extensions.

    `seed` is always set (the router draws one if the client did not), so a request that restarts
    elsewhere goes on with the same tokens. `logprobs` is -1 for none, else how many alternatives to
    report beside the chosen token; they are of the model's own distribution, before any penalty.
    """

    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int = -1


class Token(Struct, array_like=True, frozen=True):
    """One output token; `top` holds (token id, logprob) of the most likely alternatives, best first."""

    id: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class Transfer(Struct, frozen=True):
    """How one KV-cache travelled. Seconds on CLOCK_MONOTONIC; `visible` is the part after the last
    layer was computed, or -1 where the two machines share no clock."""

    mode: Literal["serialized", "layerwise"]
    transport: str
    bytes: int
    seconds: float
    visible_seconds: float


# ---- router -> machine


class Start(Struct, frozen=True, tag="start", omit_defaults=True):
    """Begin one leg of a request on this connection's stream `stream`.

    prompt: token ids of the prompt. generated: output tokens the client has already seen (a restart);
    the next token has output index len(generated) and counts towards max_tokens.
    transfer: names the hand-off between the two legs, unique per attempt; empty for phase "whole".
    prompt_machine: link address the token machine dials; set on the token leg only.
    deadline_s: seconds left. credit: how many tokens may be sent before a `Credit`.
    """

    stream: int
    request: str
    phase: Phase
    prompt: list[int]
    sampling: Sampling
    deadline_s: float
    credit: int
    generated: list[int] = []
    transfer: str = ""
    prompt_machine: str = ""


class Cancel(Struct, frozen=True, tag="cancel"):
    """End the stream now and release everything it holds; no more is heard of it."""

    stream: int


class Credit(Struct, frozen=True, tag="credit"):
    """The client has read on: `tokens` more may be sent on this stream."""

    stream: int
    tokens: int


RouterMessage = Start | Cancel | Credit


# ---- machine -> router


class Load(Struct, frozen=True):
    """A machine's own view of itself, beside the router's books. Tokens and KV blocks. A machine that is
    `draining` finishes what it has and takes nothing new."""

    prompt_tokens_waiting: int = 0
    sequences_waiting: int = 0
    sequences_running: int = 0
    kv_blocks: int = 0
    kv_blocks_used: int = 0
    kv_blocks_quarantined: int = 0
    draining: bool = False


class Event(Struct, array_like=True, frozen=True):
    """News of one stream. `index` is the output index of the first token in `tokens`.

    With `end` set the stream is over; `error` then holds (code, message) for end "error".
    """

    stream: int
    index: int = 0
    tokens: tuple[Token, ...] = ()
    end: End | None = None
    error: tuple[str, str] | None = None
    transfer: Transfer | None = None


class Step(Struct, frozen=True, tag="step"):
    """Everything one engine step moved, in one frame."""

    events: list[Event]
    load: Load


MachineMessage = Step


class MachineInfo(Struct, frozen=True):
    """What a machine tells in its hello; the router pairs machines of equal `revision` only."""

    role: Literal["prompt", "token", "mixed"]
    revision: str
    model: str
    context_tokens: int
    vocabulary: int
    kv_block_tokens: int
    kv_blocks: int
    pid: int = 0
