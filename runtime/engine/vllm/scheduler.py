"""The paper's batches (section IV-B, `runtime.policy.batching`) wrapped around vLLM's own scheduler.

vLLM's `schedule` is never copied. Before each step, prompts whose turn it isn't leave vLLM's waiting queue,
and sequences that find no room beside the prompts leave its running list; afterwards they return to their
places. Such a pause keeps the KV-cache. Where a version of vLLM lacks something that this touches, its
stock scheduler runs, with a warning.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput

from runtime import log
from runtime.engine.vllm import versions
from runtime.engine.vllm.bridge import BRIDGES, Bridge
from runtime.policy.batching import Prompt, Resident, prompt_batch, token_batch

logger = log.logger("vllm")


class PromptsFirst(Scheduler):  # type: ignore[misc]
    """Whole prompts first come first served, tokens in the room that they leave."""

    running: list[Any]
    max_num_scheduled_tokens: int

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._bridge: Bridge = BRIDGES[self.vllm_config.kv_transfer_config.engine_id]
        self._passed_over: Counter[str] = Counter()
        self._delivers = not versions.missing(self, versions.DELIVERY)
        lacking = versions.missing(self, versions.SCHEDULER)
        if getattr(getattr(self, "policy", None), "value", "fcfs") != "fcfs":
            lacking.append("policy fcfs")
        if lacking:
            logger.warning("vLLM's stock scheduler batches the prompts", lacking=lacking)
        self._batches = self._bridge.batch_tokens > 0 and not lacking
        if self._batches:  # no argument, as vLLM refuses one beyond the context
            self.scheduler_config.long_prefill_token_threshold = self._bridge.batch_tokens

    def schedule(self, *arguments: Any, **more: Any) -> Any:
        if self._delivers and self._bridge.has_reports:
            reports = self._bridge.take_reports()
            self._update_from_kv_xfer_finished(
                KVConnectorOutput(
                    finished_sending=reports.sent or None, finished_recving=reports.received or None
                )
            )
        if not self._batches:
            return super().schedule(*arguments, **more)
        with (
            self._prompts_in_turn() as prompt_tokens,
            self._tokens_in_room(prompt_tokens),
            self._no_more_than(prompt_tokens),
        ):
            return super().schedule(*arguments, **more)

    @contextmanager
    def _prompts_in_turn(self) -> Iterator[int]:
        """Show vLLM only the prompts of the next batch; says how many tokens they have."""
        order = list(self.waiting)
        begun = [request for request in self.running if not _is_decoding(request)]
        queued = [request for request in order if self._is_prompt(request)]
        batch = prompt_batch(
            (
                Prompt(request.request_id, request.num_tokens, request.num_computed_tokens)
                for request in (*begun, *queued)
            ),
            budget=self._bridge.batch_tokens,
            sequences=self.max_num_running_reqs,
        )
        chosen = {chunk.id for chunk in batch}
        later = [request for request in queued if request.request_id not in chosen]
        if later:
            self.waiting.remove_requests(later)
        try:
            yield sum(chunk.tokens for chunk in batch)
        finally:
            if later:
                self._requeue(order, later)

    def _requeue(self, order: list[Any], later: list[Any]) -> None:
        """The queue as it was without what has been scheduled, behind what vLLM has put in front."""
        left = list(self.waiting)
        known, kept = set(order), {*left, *later}
        self.waiting.remove_requests(left)
        for request in (*(r for r in left if r not in known), *(r for r in order if r in kept)):
            self.waiting.add_request(request)

    @contextmanager
    def _tokens_in_room(self, prompt_tokens: int) -> Iterator[None]:
        """Show vLLM only the running sequences that fit beside the prompts."""
        order, limit = list(self.running), self.max_num_running_reqs
        tokens = [request.request_id for request in order if _is_decoding(request)]
        going = token_batch(
            [Resident(id, self._passed_over[id]) for id in tokens],
            prompt_tokens=prompt_tokens,
            budget=self._bridge.batch_tokens,
            sequences=limit,
        )
        passed = set(tokens).difference(going)
        self._passed_over = Counter({id: self._passed_over[id] + 1 for id in passed})
        if not passed:
            yield
            return
        self.running = [request for request in order if request.request_id not in passed]
        self._admit(limit - len(passed))
        try:
            yield
        finally:
            self._admit(limit)
            known, now = set(order), set(self.running)
            kept = [r for r in order if r in now or r.request_id in passed]
            self.running = kept + [r for r in self.running if r not in known]

    @contextmanager
    def _no_more_than(self, prompt_tokens: int) -> Iterator[None]:
        """Keep a prompt that is longer than a batch to its piece; vLLM does so unless it is all there is."""
        limit = self.max_num_scheduled_tokens
        seen = (*self.running, *self.waiting, *getattr(self, "kv_holding_waiting", ()))
        if prompt_tokens and len(seen) == 1:
            self.max_num_scheduled_tokens = min(limit, prompt_tokens)
        try:
            yield
        finally:
            self.max_num_scheduled_tokens = limit

    def _admit(self, sequences: int) -> None:
        """Let so many sequences run; newer versions tell this from the slots of the model."""
        if hasattr(self, "max_num_active_reqs"):
            self.max_num_active_reqs = sequences
        else:
            self.max_num_running_reqs = sequences

    def _is_prompt(self, request: Any) -> bool:
        """Whether a waiting request needs its prompt computed here, rather than taken in from a peer."""
        return not request.num_computed_tokens and not self._bridge.awaits(request.request_id)


def _is_decoding(request: Any) -> bool:
    return bool(request.num_tokens - request.num_computed_tokens == 1)
