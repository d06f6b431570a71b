"""One engine that is both machines: a prompt's layers are copied into the blocks that its token leg reserved.

All of a split but the link, in one process and on one thread.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from runtime.engine import Failed, News, Reserved, Sampled, Work
from runtime.engine.vllm.engine import VllmEngine
from runtime.kv_link.pool import Pool
from runtime.wire import FINISHED, Sampling, Token

LIMIT = 20_000


@dataclass(slots=True)
class LoopPut:
    """`runtime.engine.LayerPut` within one pool. `lost` layers are zeroed instead of copied."""

    pool: Pool
    target: Sequence[int]
    lost: frozenset[int] = frozenset()
    begun: list[int] = field(default_factory=list)
    seen: list[tuple[int, int]] = field(default_factory=list)
    first: Token | None = None
    aborted: list[str] = field(default_factory=list)

    def begin(self, batch_tokens: int) -> None:
        self.begun.append(batch_tokens)

    def layer(self, layer: int, first: int, blocks: Sequence[int]) -> None:
        for place, block in enumerate(blocks, start=first):
            data = self.pool.blocks(layer, block, 1)
            self.pool.blocks(layer, self.target[place], 1)[:] = (
                bytes(len(data)) if layer in self.lost else data
            )
            self.seen.append((layer, place))

    def seal(self, first_token: Token) -> None:
        self.first = first_token

    def abort(self, reason: str) -> None:
        self.aborted.append(reason)


@dataclass(slots=True)
class Told:
    """What the engine has said of one request."""

    tokens: list[Token] = field(default_factory=list)
    end: str | None = None
    failed: Failed | None = None

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


class Loopback:
    """Drives the engine as a machine would."""

    def __init__(self, engine: VllmEngine, pool: Pool) -> None:
        self.engine, self.pool = engine, pool
        self.told: dict[str, Told] = {}
        self.reserved: dict[str, tuple[int, ...]] = {}
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"request-{self._count}"

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Step until the engine rests, or until a condition holds."""
        for _ in range(LIMIT):
            if until() or not self.engine.busy():
                return
            self.hear(self.engine.step())
        raise AssertionError(f"the engine does not come to rest: {self.engine.load()}")

    def hear(self, news: Iterable[News]) -> None:
        for item in news:
            if isinstance(item, Reserved):
                self.reserved[item.id] = item.blocks
                continue
            told = self.told.setdefault(item.id, Told())
            if isinstance(item, Sampled):
                told.tokens += item.tokens
                told.end = item.end
            else:
                told.failed = item

    def end_all(self) -> None:
        """After a failed test: let nothing of it reach the next one."""
        for name in {
            *self.engine.jobs,
            *self.told,
            *self.reserved,
            *(f"{leg}-prompt" for leg in self.reserved),
        }:
            self.engine.cancel(name)
            self.engine.fenced(name)
            self.engine.drained(name)
        self.told, self.reserved = {}, {}
        self.run()

    # ---- whole legs

    def whole(self, prompt: list[int], sampling: Sampling, generated: Sequence[int] = ()) -> Told:
        [told] = self.wholes([(prompt, sampling)], generated)
        return told

    def wholes(
        self, requests: Iterable[tuple[list[int], Sampling]], generated: Sequence[int] = ()
    ) -> list[Told]:
        """All at once."""
        names = []
        for prompt, sampling in requests:
            names.append(self.name())
            self.engine.submit(Work(names[-1], "whole", list(prompt), sampling, list(generated)))
        self.run()
        return [self.told[name] for name in names]

    # ---- split legs

    def reserve(self, prompt: list[int], sampling: Sampling, generated: Sequence[int] = ()) -> str:
        """A token leg, with its blocks set aside if there is room."""
        name = self.name()
        self.engine.submit(Work(name, "token", list(prompt), sampling, list(generated)))
        self.run(lambda: name in self.reserved)
        return name

    def prompt(
        self,
        leg: str,
        prompt: list[int],
        sampling: Sampling,
        *,
        generated: Sequence[int] = (),
        lost: frozenset[int] = frozenset(),
    ) -> LoopPut:
        """Queue the prompt leg of a token leg; its id is `<leg>-prompt`."""
        put = LoopPut(self.pool, self.reserved[leg], lost)
        self.engine.submit(Work(f"{leg}-prompt", "prompt", list(prompt), sampling, list(generated), put))
        return put

    def hand_over(self, leg: str, put: LoopPut) -> None:
        """What the link does when everything has been put, or when the first token was the last."""
        self.engine.drained(f"{leg}-prompt")
        if put.first is not None:
            self.engine.arrived(leg, put.first)
        else:
            assert put.aborted == [FINISHED]
            self.engine.cancel(leg)
            self.engine.fenced(leg)

    def split(
        self,
        prompt: list[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        lost: frozenset[int] = frozenset(),
    ) -> Told:
        [told] = self.splits([(prompt, sampling)], generated, lost)
        return told

    def splits(
        self,
        requests: Iterable[tuple[list[int], Sampling]],
        generated: Sequence[int] = (),
        lost: frozenset[int] = frozenset(),
    ) -> list[Told]:
        """All at once: reservations first, then prompts and tokens. Both legs' tokens as one answer."""
        requests = list(requests)
        legs = [self.reserve(prompt, sampling, generated) for prompt, sampling in requests]
        assert all(leg in self.reserved for leg in legs), "the pool is too small for this test"
        puts = [
            self.prompt(leg, prompt, sampling, generated=generated, lost=lost)
            for leg, (prompt, sampling) in zip(legs, requests, strict=True)
        ]
        waiting = dict(zip(legs, puts, strict=True))
        while waiting:
            self.run(lambda: any(put.first or put.aborted for put in waiting.values()))
            done = [leg for leg, put in waiting.items() if put.first or put.aborted]
            assert done, self.engine.load()
            for leg in done:
                self.hand_over(leg, waiting.pop(leg))
        self.run()
        return [self._joined(leg) for leg in legs]

    def _joined(self, leg: str) -> Told:
        first = self.told[f"{leg}-prompt"]
        if first.end != "handoff":
            return first
        rest = self.told[leg]
        return Told([*first.tokens, *rest.tokens], rest.end, rest.failed)
