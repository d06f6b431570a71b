"""vLLM's KV connector, as thin as it can be: each hook is one call on the engine's bridge.

The only module that imports vLLM's KV-transfer package. vLLM makes two objects of the class, one beside its
scheduler and one beside its model; both find the bridge by the engine's id. They live in one process, so
nothing travels between them but the bridge itself.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

from runtime.engine.vllm.bridge import BRIDGES, Bridge, Scheduled

Hook = Callable[..., Any]


def _safe(answer: Any) -> Callable[[Hook], Hook]:
    """An exception in a hook would end vLLM's engine: it ends the transfers in hand instead."""

    def decorate(hook: Hook) -> Hook:
        @functools.wraps(hook)
        def safe(self: "SplitwiseConnector", *arguments: Any, **more: Any) -> Any:
            try:
                return hook(self, *arguments, **more)
            except Exception as error:
                self._bridge.fail_transfers(f"{hook.__name__}: {type(error).__name__}: {error}")
                return answer

        return safe

    return decorate


class _Batch(KVConnectorMetadata):  # type: ignore[misc]
    """vLLM wants an object per batch; the plan itself stays in the bridge."""


class SplitwiseConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Puts layers of prompts as they are computed, and takes prompts' KV in from peers."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._bridge: Bridge = BRIDGES[vllm_config.kv_transfer_config.engine_id]
        self._layers: dict[str, int] = {}

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """A full CUDA graph replays without Python, hence without the hooks that put layers."""
        return bool(extra_config.get("prompts", True))

    # ---- beside the scheduler

    @_safe(None)
    def on_new_request(self, request: Any) -> None:
        self._bridge.introduced(request.request_id, request)

    @_safe((0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        external = self._bridge.external_tokens(request.request_id, num_computed_tokens)
        return external, bool(external)

    @_safe(None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._bridge.allocated(request.request_id, blocks.get_block_ids()[0], num_external_tokens)

    @_safe(_Batch())
    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        self._bridge.plan(_batch(scheduler_output))
        return _Batch()

    @_safe((True, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._bridge.finished(request.request_id), None

    def has_pending_push_work(self) -> bool:
        return self._bridge.has_reports

    # ---- beside the model

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        names = sorted(kv_caches, key=_number)
        self._layers = {name: layer for layer, name in enumerate(names)}
        self._bridge.caches = {name: kv_caches[name] for name in names}

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Peers write blocks by themselves."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A request is scheduled only when all of its KV is there."""

    @_safe(None)
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        self._bridge.saved(self._layers[layer_name])

    @_safe(None)
    def wait_for_save(self) -> None:
        self._bridge.flush()

    @_safe((None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        reports = self._bridge.take_reports()
        return reports.sent or None, reports.received or None


def _number(name: str) -> tuple[int, ...]:
    """A layer's place in the model, by the numbers in its name."""
    return tuple(int(number) for number in re.findall(r"\d+", name))


def _batch(output: Any) -> list[Scheduled]:
    """What vLLM has scheduled, in one form for new requests and known ones."""
    counts = output.num_scheduled_tokens
    batch = [
        Scheduled(new.req_id, new.num_computed_tokens, counts[new.req_id], new.block_ids[0], fresh=True)
        for new in output.scheduled_new_reqs
    ]
    known = output.scheduled_cached_reqs
    for place, id in enumerate(known.req_ids):
        blocks = known.new_block_ids[place]
        batch.append(
            Scheduled(
                id,
                known.num_computed_tokens[place],
                counts[id],
                blocks[0] if blocks else (),
                fresh=id in known.resumed_req_ids,
            )
        )
    return batch
