"""Prompt legs: wait for the token machine's ticket, compute, put the KV-cache, tell the first token.

A prompt enters the engine only with its reservation in hand, so that two pools full of each other's
requests can never wait for one another. Its blocks stay pinned until the last put has left them.
"""

from dataclasses import dataclass

from runtime.engine import Failed, LayerPut, Sampled, Work
from runtime.engine.thread import EngineThread
from runtime.errors import Cancelled, Failure, TransferFailed, failure
from runtime.kv_link.endpoint import KvLink
from runtime.stream import Stream


@dataclass(slots=True)
class _Leg:
    stream: Stream
    submitted: bool = False
    over: bool = False
    drained: bool = False


class PromptWorker:
    """Prompt legs by transfer id, which is also their id in the engine."""

    def __init__(self, engine: EngineThread, kv: KvLink) -> None:
        self._engine = engine
        self._kv = kv
        self._legs: dict[str, _Leg] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._legs

    def __len__(self) -> int:
        return len(self._legs)

    def start(self, stream: Stream, deadline: float) -> None:
        """Begin a leg. `deadline` is on time.monotonic()."""
        transfer = stream.leg = stream.start.transfer
        self._legs[transfer] = _Leg(stream)
        self._kv.expect(transfer, deadline=deadline)

    def ticket(self, transfer: str, put: LayerPut) -> None:
        """The token machine has set blocks aside: the prompt may be computed."""
        leg = self._legs.get(transfer)
        if leg is None or leg.stream.ended:
            self._kv.forget(transfer, "nobody waits for this prompt any more")
            return
        start = leg.stream.start
        leg.submitted = True
        self._engine.submit(Work(transfer, "prompt", start.prompt, start.sampling, start.generated, put))

    def news(self, news: Sampled | Failed) -> None:
        """The engine has the first token, or gave up."""
        leg = self._legs[news.id]
        leg.over = True
        if isinstance(news, Sampled):
            leg.stream.emit(news.tokens, end=news.end)
        else:
            leg.stream.fail(failure(news.code, news.message))
            self._kv.forget(news.id, news.message)
        self._finish(news.id, leg)

    def failed(self, transfer: str, reason: str) -> None:
        """The link gave this transfer up."""
        self.stop(transfer, TransferFailed(reason))

    def drained(self, transfer: str) -> None:
        """No put reads the leg's blocks any more. The engine's last word may come before this or after."""
        leg = self._legs.get(transfer)
        if leg is not None:
            leg.drained = True
            self._finish(transfer, leg)

    def stop(self, id: str, why: Failure) -> None:
        """End a leg early, for whatever reason, and let go of everything once its puts have drained."""
        leg = self._legs.get(id)
        if leg is None:
            return
        if isinstance(why, Cancelled):
            leg.stream.silence()
        else:
            leg.stream.fail(why)
        leg.over = True
        if leg.submitted:
            self._engine.cancel(id)
        self._kv.forget(id, why.message)
        self._finish(id, leg)

    def _finish(self, id: str, leg: _Leg) -> None:
        if leg.over and leg.drained:
            del self._legs[id]
            if leg.submitted:
                self._engine.drained(id)
