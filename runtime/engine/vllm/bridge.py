"""What the halves of the connector, the scheduler and the engine say to each other, without any vLLM in it.

vLLM builds its connector and scheduler itself, from class names, so they find their bridge by the engine's
id in `BRIDGES`. Everything happens on the engine's thread. No method that vLLM's hooks call may raise, for an
exception in a hook ends the whole engine: what goes wrong with one request is kept in `failures`.

Blocks outlive requests here: vLLM keeps the blocks of a finished request that is `held` until its id is in
the next `Reports`, which happens when kv_link says that nobody reads (prompt) or writes (token) them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runtime.engine import LayerPut, Reserved


class Saver(Protocol):
    """Makes a layer's blocks readable in the pool, at once or later; see `runtime.engine.vllm.memory`."""

    def save(self, layer: int, blocks: Sequence[int], then: Callable[[], None]) -> None:
        """Call `then` as soon as these blocks of this layer can be read in the pool."""

    def flush(self) -> None:
        """Every `then` has been called when this returns."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request in a batch: `count` tokens behind `computed` ones; `blocks` are new ones, or all of them
    if `fresh`."""

    id: str
    computed: int
    count: int
    blocks: Sequence[int]
    fresh: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """Logical blocks `first`, first+1, ... of a prompt, which this batch fills and which lie in `blocks`."""

    id: str
    put: LayerPut
    first: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reports:
    """Requests whose blocks vLLM may free (`sent`), and whose KV has come or whose writer is gone."""

    sent: set[str]
    received: set[str]


@dataclass(slots=True)
class _Prompt:
    put: LayerPut
    tokens: int
    blocks: list[int] = field(default_factory=list)
    offered: int = 0
    begun: bool = False
    drained: bool = False
    held: bool = False


@dataclass(slots=True)
class _Token:
    tokens: int
    request: Any = None
    blocks: tuple[int, ...] = ()
    arrived: bool = False
    fenced: bool = False
    over: bool = False


class Bridge:
    """`caches` are vLLM's tensors, one per layer in order; `layers`, `block_tokens` and `saver` are set once
    they have become a pool. `batch_tokens`: prompt tokens per batch. `reservable`: how many blocks may be set
    aside at once for KV that has not arrived; one reservation is always possible."""

    def __init__(self, batch_tokens: int = 0) -> None:
        self.batch_tokens = batch_tokens
        self.reservable = 2**62
        self.layers = 0
        self.block_tokens = 0
        self.saver: Saver | None = None
        self.caches: dict[str, Any] = {}
        self.running: set[str] = set()
        self.failures: dict[str, str] = {}
        self._prompts: dict[str, _Prompt] = {}
        self._tokens: dict[str, _Token] = {}
        self._reserved: list[Reserved] = []
        self._sent: set[str] = set()
        self._received: set[str] = set()
        self._plan: tuple[Chunk, ...] = ()
        self._saved = 0

    # ---- the engine's side

    def prompt(self, id: str, put: LayerPut, tokens: int) -> None:
        """A prompt whose KV of so many tokens goes to `put`."""
        self._prompts[id] = _Prompt(put, tokens)

    def token(self, id: str, tokens: int) -> None:
        """A request whose first so many tokens' KV comes from a peer."""
        self._tokens[id] = _Token(tokens)

    def request(self, id: str) -> Any:
        """vLLM's own object for a token request."""
        return self._tokens[id].request

    def arrived(self, id: str) -> bool:
        """The KV is in the reserved blocks. False if nobody waits for it (any more)."""
        token = self._tokens.get(id)
        if token is None or not token.blocks or token.arrived or token.over:
            return False
        token.arrived = True
        self._received.add(id)
        return True

    def fenced(self, id: str) -> None:
        """No peer writes the reserved blocks any more."""
        token = self._tokens.get(id)
        if token is None or token.arrived:
            return
        token.fenced = True
        if token.over:
            self._received.add(id)

    def drained(self, id: str) -> None:
        """No put reads the prompt's blocks any more."""
        prompt = self._prompts.get(id)
        if prompt is None:
            return
        prompt.drained = True
        if prompt.held:
            self._sent.add(id)

    def take_reserved(self) -> list[Reserved]:
        taken, self._reserved = self._reserved, []
        return taken

    def check_saved(self) -> None:
        """After a batch: every layer of every chunk must have been offered, or the put is worthless."""
        if self._plan and self._saved != self.layers:
            for chunk in self._plan:
                self.failures[chunk.id] = f"vLLM showed {self._saved} of {self.layers} layers of a prompt"
        self._plan = ()

    @property
    def has_reports(self) -> bool:
        return bool(self._sent or self._received)

    @property
    def quarantined(self) -> int:
        """Blocks of requests that are over, which a peer may still write."""
        return sum(len(token.blocks) for token in self._tokens.values() if token.over and not token.arrived)

    # ---- vLLM's side: scheduling

    def introduced(self, id: str, request: Any) -> None:
        """vLLM has queued a request."""
        if token := self._tokens.get(id):
            token.request = request

    def awaits(self, id: str) -> bool:
        """Whether a request has yet to get blocks for KV that comes from a peer."""
        token = self._tokens.get(id)
        return token is not None and not token.blocks

    def external_tokens(self, id: str, local: int) -> int | None:
        """How many tokens behind `local` ones come from a peer. None: it must wait for other reservations."""
        if not self.awaits(id):
            return 0
        tokens = self._tokens[id].tokens
        held = sum(len(token.blocks) for token in self._tokens.values() if not token.arrived)
        if held and held + -(-tokens // self.block_tokens) > self.reservable:
            return None
        return tokens - local

    def allocated(self, id: str, blocks: Sequence[int], external: int) -> None:
        """vLLM has set blocks aside, of which `external` tokens' worth will be written by a peer."""
        token = self._tokens.get(id)
        if token is not None and external and not token.blocks:
            token.blocks = tuple(blocks)
            self._reserved.append(Reserved(id, token.blocks))

    def plan(self, batch: Iterable[Scheduled]) -> tuple[Chunk, ...]:
        """What this batch fills of prompts that have a put."""
        batch = list(batch)
        self.running |= {item.id for item in batch}
        prompts = [(item, self._prompts[item.id]) for item in batch if item.id in self._prompts]
        tokens = sum(
            item.computed + item.count - prompt.offered * self.block_tokens for item, prompt in prompts
        )
        for item, prompt in prompts:
            if prompt.begun and item.fresh:
                self.failures[item.id] = "vLLM dropped the KV of a prompt in the middle"
            elif not prompt.begun:
                prompt.begun = True
                self._guarded(item.id, prompt.put.begin, tokens)
        self._plan = tuple(chunk for item, prompt in prompts if (chunk := self._chunk(item, prompt)))
        self._saved = 0
        return self._plan

    def _chunk(self, item: Scheduled, prompt: _Prompt) -> Chunk | None:
        prompt.blocks = [*item.blocks] if item.fresh else [*prompt.blocks, *item.blocks]
        end = item.computed + item.count
        filled = -(-end // self.block_tokens) if end >= prompt.tokens else end // self.block_tokens
        first, prompt.offered = prompt.offered, max(prompt.offered, filled)
        if first >= filled or prompt.drained or item.id in self.failures:
            return None
        return Chunk(item.id, prompt.put, first, tuple(prompt.blocks[first:filled]))

    def finished(self, id: str) -> bool:
        """A request is over for vLLM. True: keep its blocks until it is reported."""
        self.running.discard(id)
        if prompt := self._prompts.get(id):
            prompt.held = prompt.begun and not prompt.drained
            if not prompt.held:
                del self._prompts[id]
            return prompt.held
        if token := self._tokens.get(id):
            token.over = True
            writable = bool(token.blocks) and not token.arrived
            if writable and token.fenced:
                self._received.add(id)
            if not writable and id not in self._received:
                del self._tokens[id]
            return writable
        return False

    # ---- vLLM's side: computing

    def saved(self, layer: int) -> None:
        """A layer of the batch has been computed (on a GPU: launched)."""
        self._saved += 1
        for chunk in self._plan:
            if self.saver is not None:
                self._guarded(chunk.id, self.saver.save, layer, chunk.blocks, self._offer(chunk, layer))

    def flush(self) -> None:
        """The batch has been computed: let every layer be offered."""
        for chunk in self._plan:
            if self.saver is not None:
                self._guarded(chunk.id, self.saver.flush)

    def _offer(self, chunk: Chunk, layer: int) -> Callable[[], None]:
        return lambda: self._guarded(chunk.id, chunk.put.layer, layer, chunk.first, chunk.blocks)

    def take_reports(self) -> Reports:
        """What vLLM may act on now."""
        reports = Reports(self._sent, self._received)
        self._sent, self._received = set(), set()
        for id in reports.sent:
            del self._prompts[id]
        for id in reports.received:
            if self._tokens[id].over:
                del self._tokens[id]
        return reports

    def fail_transfers(self, why: str) -> None:
        """Something went wrong that cannot be laid at one request's door."""
        for id in (*self._prompts, *self._tokens):
            self.failures.setdefault(id, why)

    def _guarded(self, id: str, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self.failures.setdefault(id, f"{type(error).__name__}: {error}")


BRIDGES: dict[str, Bridge] = {}
"""By the engine's id, for the objects that vLLM makes by itself."""
