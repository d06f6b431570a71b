"""One work in the engine: its tokens, its blocks, and who else may touch them."""

from dataclasses import dataclass, field

from runtime.engine import LayerPut, Work
from runtime.policy.batching import Prompt, Resident
from runtime.wire import End


@dataclass(slots=True, eq=False)
class Sequence:
    """`order` is its place in line. The KV of the first `computed` of `tokens` is in `blocks`.

    `reserving`: waits for a peer to fill its blocks. `written`: a peer may write them. `begun`: its put has
    begun. `drained`: nothing reads its blocks (any more), and nothing will."""

    work: Work
    order: int
    tokens: list[int]
    reserving: bool
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    passed_over: int = 0
    written: bool = False
    begun: bool = False
    drained: bool = False

    @classmethod
    def of(cls, work: Work, order: int) -> "Sequence":
        return cls(work, order, work.tokens, reserving=work.phase == "token")

    @property
    def id(self) -> str:
        return self.work.id

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.work.prompt) :]

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - len(self.work.prompt)

    @property
    def put(self) -> LayerPut | None:
        return self.work.put if self.work.phase == "prompt" else None

    @property
    def pinned(self) -> bool:
        """Whether somebody else may still touch its blocks."""
        return self.written or (self.begun and not self.drained)

    def as_prompt(self) -> Prompt:
        return Prompt(self.id, len(self.tokens), self.computed)

    def as_resident(self) -> Resident:
        return Resident(self.id, self.passed_over)

    def ending(self, end_tokens: frozenset[int], context_tokens: int) -> End | None:
        """Whether its last token was the last."""
        sampling, last = self.work.sampling, self.tokens[-1]
        if last in sampling.stop_token_ids or (last in end_tokens and not sampling.ignore_eos):
            return "stop"
        if self.output_tokens >= sampling.max_tokens or len(self.tokens) >= context_tokens:
            return "length"
        return None
