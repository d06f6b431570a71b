"""Token legs: set blocks aside, arm a ticket, take the KV-cache in, decode from the second token on.

Blocks that a peer may write have two lifetimes: the leg's, and the writer's. A leg that ends early leaves
the engine at once, but its blocks only when kv_link says that they are fenced.
"""

from dataclasses import dataclass
from typing import Literal

from runtime.engine import Failed, Reserved, Sampled, Work
from runtime.engine.thread import EngineThread
from runtime.errors import Cancelled, Failure, TransferFailed, failure
from runtime.kv_link.endpoint import KvLink
from runtime.stream import Stream
from runtime.wire import FINISHED, Phase, Token, Transfer

_State = Literal["waiting", "armed", "running", "over"]


@dataclass(slots=True)
class _Leg:
    stream: Stream
    deadline: float
    state: _State = "waiting"


class TokenWorker:
    """Token legs by transfer id, and whole requests by an id of their own; both are ids in the engine."""

    def __init__(self, engine: EngineThread, kv: KvLink, *, recompute: bool) -> None:
        self._engine = engine
        self._kv = kv
        self._recompute = recompute
        self._legs: dict[str, _Leg] = {}
        self._wholes = 0

    def __contains__(self, id: str) -> bool:
        return id in self._legs

    def __len__(self) -> int:
        return len(self._legs)

    def start(self, stream: Stream, deadline: float) -> None:
        """Begin a leg. `deadline` is on time.monotonic()."""
        if stream.start.phase == "whole":
            self._whole(stream, deadline)
        else:
            self._begin(stream.start.transfer, "token", _Leg(stream, deadline))

    def _whole(self, stream: Stream, deadline: float) -> None:
        self._wholes += 1
        self._begin(f"whole-{self._wholes}", "whole", _Leg(stream, deadline, "running"))

    def _begin(self, id: str, phase: Phase, leg: _Leg) -> None:
        start = leg.stream.start
        leg.stream.leg = id
        self._legs[id] = leg
        self._engine.submit(Work(id, phase, start.prompt, start.sampling, start.generated))

    # ---- the engine's news

    def news(self, news: Reserved | Sampled | Failed) -> None:
        """Blocks were set aside, tokens came, or the engine gave up."""
        if isinstance(news, Reserved):
            self._reserved(news)
        elif isinstance(news, Sampled):
            self._legs[news.id].stream.emit(news.tokens, end=news.end)
            if news.end is not None:
                del self._legs[news.id]
        else:
            self.stop(news.id, failure(news.code, news.message))

    def _reserved(self, reserved: Reserved) -> None:
        leg = self._legs.get(reserved.id)
        if leg is None:  # it ended before any peer heard of these blocks
            self._engine.fenced(reserved.id)
            return
        leg.state = "armed"
        self._kv.arm(
            reserved.id,
            prompt_machine=leg.stream.start.prompt_machine,
            blocks=reserved.blocks,
            deadline=leg.deadline,
        )

    # ---- the link's news

    def arrived(self, transfer: str, first: Token, stats: Transfer) -> None:
        """The KV-cache is here, whole, and its writer is gone."""
        leg = self._legs.get(transfer)
        if leg is None or leg.state != "armed":
            return
        leg.state = "running"
        leg.stream.emit(transfer=stats)
        self._engine.arrived(transfer, first)

    def failed(self, transfer: str, reason: str) -> None:
        """The KV-cache will not come. Restarting is the router's business; recomputing here may be ours."""
        leg = self._legs.get(transfer)
        if leg is None or leg.state != "armed":
            return
        if reason == FINISHED:
            self.stop(transfer, Cancelled(reason))
        elif self._recompute:
            self._drop(transfer, leg, reason)
            leg.stream.rewind()
            self._whole(leg.stream, leg.deadline)
        else:
            self.stop(transfer, TransferFailed(reason))

    def fenced(self, transfer: str) -> None:
        """No peer can write the leg's blocks any more."""
        leg = self._legs.get(transfer)
        if leg is not None and leg.state == "over":
            del self._legs[transfer]
        self._engine.fenced(transfer)

    # ---- ends

    def stop(self, id: str, why: Failure) -> None:
        """End a leg early. What a peer may still write stays aside until it is fenced."""
        leg = self._legs.get(id)
        if leg is None or leg.state == "over":
            return
        if isinstance(why, Cancelled):
            leg.stream.silence()
        else:
            leg.stream.fail(why)
        self._drop(id, leg, why.message)

    def _drop(self, id: str, leg: _Leg, reason: str) -> None:
        was, leg.state = leg.state, "over"
        self._engine.cancel(id)
        if was == "armed":
            self._kv.revoke(id, reason)
        else:
            del self._legs[id]
