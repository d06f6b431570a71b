"""`runtime.engine.Engine` over vLLM's core: the machine cannot tell it from the reference engine.

Phase by phase: a prompt is a request for one token whose layers go to its put; a token leg is a request whose
prompt KV comes from a peer; a whole request is vLLM's own business.
"""

from dataclasses import dataclass
from typing import Protocol

from runtime.engine import EngineInfo, Failed, News, Sampled, Work
from runtime.engine.vllm.arguments import Switches
from runtime.engine.vllm.asks import Answer, Ask
from runtime.engine.vllm.bridge import Bridge
from runtime.errors import EngineFailure, InvalidRequest
from runtime.wire import FINISHED, End, Load, Token

_OPEN = 0
"""Stands for a first token that another machine has yet to sample."""


class ComputingCore(Protocol):
    """What the engine needs of `runtime.engine.vllm.core.Core`."""

    def add(self, ask: Ask) -> None: ...
    def abort(self, id: str) -> None: ...
    def step(self) -> tuple[list[Answer], bool]: ...
    def free_blocks(self) -> int: ...
    def hand_over(self, id: str, first: int) -> None: ...
    def force(self, id: str, first: int) -> None: ...
    def close(self) -> None: ...


class Loader(Protocol):
    """Makes blocks that a peer has put visible to vLLM."""

    def load(self, blocks: tuple[int, ...]) -> None: ...


@dataclass(slots=True)
class _Job:
    work: Work
    blocks: tuple[int, ...] = ()
    repeats_first: bool = False


class VllmEngine:
    """Owns the core. After `step` has found nothing to do, `busy` is false until someone calls again: to wait
    for a peer's KV costs no CPU."""

    def __init__(
        self, core: ComputingCore, bridge: Bridge, *, info: EngineInfo, loader: Loader, switches: Switches
    ) -> None:
        self.info = info
        self._core, self._bridge, self._loader = core, bridge, loader
        self._switches = switches
        self._jobs: dict[str, _Job] = {}
        self._news: list[News] = []
        self._stirred = False

    def submit(self, work: Work) -> None:
        check(work, self.info)
        if work.id in self._jobs:
            raise InvalidRequest(f"{work.id} is running already")
        job = self._jobs[work.id] = _Job(work)
        self._stirred = True
        if work.phase == "prompt" and work.put is not None:
            self._bridge.prompt(work.id, work.put, len(work.tokens))
        if work.phase == "token":
            job.repeats_first = self._switches.recompute_first_token
            self._bridge.token(work.id, len(work.tokens))
        self._core.add(self._ask(job))

    def cancel(self, id: str) -> None:
        if self._jobs.pop(id, None) is not None:
            self._stirred = True
            self._core.abort(id)

    def arrived(self, id: str, first: Token) -> None:
        job = self._jobs.get(id)
        if job is None or not self._bridge.arrived(id):
            return
        self._stirred = True
        self._loader.load(job.blocks)
        if end := self._end(job.work, first, len(job.work.generated) + 1):
            self.cancel(id)
            self._news.append(Sampled(id, (), end))
        elif job.repeats_first:
            self._core.force(id, first.id)
        else:
            self._core.hand_over(id, first.id)

    def fenced(self, id: str) -> None:
        self._bridge.fenced(id)
        self._stirred = True

    def drained(self, id: str) -> None:
        self._bridge.drained(id)
        self._stirred = True

    def busy(self) -> bool:
        return self._stirred

    def step(self) -> list[News]:
        answers, computed = self._core.step()
        self._bridge.check_saved()
        news, self._news = self._news, []
        for reserved in self._bridge.take_reserved():
            if job := self._jobs.get(reserved.id):
                job.blocks = reserved.blocks
            news.append(reserved)
        for answer in answers:
            news += self._sampled(answer)
        news += self._failed()
        self._stirred = bool(computed or news or self._news or self._bridge.has_reports)
        return news

    def load(self) -> Load:
        running = self._jobs.keys() & self._bridge.running
        waiting = [job.work for id, job in self._jobs.items() if id not in running and not job.blocks]
        return Load(
            prompt_tokens_waiting=sum(len(work.tokens) for work in waiting if work.phase != "token"),
            sequences_waiting=len(waiting),
            sequences_running=len(running),
            kv_blocks=self.info.layout.blocks - 1,  # vLLM keeps block 0 to itself
            kv_blocks_used=self.info.layout.blocks - 1 - self._core.free_blocks(),
            kv_blocks_quarantined=self._bridge.quarantined,
        )

    @property
    def jobs(self) -> frozenset[str]:
        """Works that are not over."""
        return frozenset(self._jobs)

    def close(self) -> None:
        """Let vLLM go; nothing may be called afterwards."""
        self._core.close()

    # ----

    def _ask(self, job: _Job) -> Ask:
        work, generated = job.work, len(job.work.generated)
        takes_over = work.phase == "token" and not job.repeats_first
        prior = generated + takes_over
        return Ask(
            id=work.id,
            tokens=[*work.tokens, _OPEN] if takes_over else work.tokens,
            sampling=work.sampling,
            stops=self._stops(work),
            max_tokens=1 if work.phase == "prompt" else max(1, work.sampling.max_tokens - prior),
            prior=prior,
            private=work.phase == "token",
            first_is_known=job.repeats_first,
        )

    def _stops(self, work: Work) -> frozenset[int]:
        ends = frozenset() if work.sampling.ignore_eos else self.info.end_tokens
        return ends.union(work.sampling.stop_token_ids)

    def _end(self, work: Work, last: Token, output_tokens: int) -> End | None:
        """Whether a token was the last one of its request."""
        if last.id in self._stops(work):
            return "stop"
        if output_tokens >= work.sampling.max_tokens:
            return "length"
        return "length" if len(work.prompt) + output_tokens >= self.info.context_tokens else None

    def _sampled(self, answer: Answer) -> list[News]:
        job = self._jobs.get(answer.id)
        if job is None or answer.id in self._bridge.failures:
            return []
        if answer.end in ("error", "abort"):
            self._bridge.failures.setdefault(answer.id, "vLLM gave the request up")
            return []
        tokens = answer.tokens
        if job.repeats_first and tokens:
            job.repeats_first, tokens = False, tokens[1:]
        end: End | None = None
        if job.work.phase == "prompt":
            end = self._finish_prompt(job.work, tokens[0])
        elif answer.end is not None:
            end = "stop" if answer.end == "stop" else "length"
        if end is not None:
            del self._jobs[answer.id]
        return [Sampled(answer.id, tokens, end)] if tokens or end else []

    def _finish_prompt(self, work: Work, first: Token) -> End:
        end = self._end(work, first, len(work.generated) + 1) or "handoff"
        if work.put is not None and end == "handoff":
            work.put.seal(first)
        elif work.put is not None:
            work.put.abort(FINISHED)
        return end

    def _failed(self) -> list[News]:
        """What went wrong inside vLLM's hooks, as news; such a request ends here."""
        failures, self._bridge.failures = self._bridge.failures, {}
        news: list[News] = []
        for id, why in failures.items():
            job = self._jobs.get(id)
            if job is None:
                continue
            if job.work.put is not None:
                job.work.put.abort(why)
            self.cancel(id)
            news.append(Failed(id, EngineFailure.code, why))
        return news


def check(work: Work, info: EngineInfo) -> None:
    """Raises InvalidRequest if the work can never run."""
    tokens = work.tokens
    if not work.prompt:
        raise InvalidRequest("the prompt is empty: send at least one token")
    if len(tokens) >= info.context_tokens:
        raise InvalidRequest(
            f"{len(tokens)} tokens leave no room for an answer: this machine holds {info.context_tokens} "
            "tokens of prompt and answer together"
        )
    named = {
        "token": tokens,
        "logit_bias": work.sampling.logit_bias,
        "stop_token_ids": work.sampling.stop_token_ids,
    }
    for what, ids in named.items():
        for id in ids:
            if not 0 <= id < info.vocabulary:
                raise InvalidRequest(f"{what} {id}: the model's tokens are 0 to {info.vocabulary - 1}")
    if work.sampling.max_tokens <= len(work.generated):
        raise InvalidRequest(
            f"max_tokens {work.sampling.max_tokens}: that many tokens were generated already"
        )
