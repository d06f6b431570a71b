"""What a spec may ask for and this release does not do, so that the status says it instead of keeping quiet.

A field belongs here exactly as long as it changes nothing that a program reads; the tests hold both halves.
Power caps, RDMA and SLOs have conditions of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.api.deployment import Spec, parallel
from controlplane.api.service import MixedPool


@dataclass(frozen=True, slots=True)
class Shortfall:
    """`field`: its path in the spec, ROLE for any pool. `asked`: whether a spec counts on it."""

    field: str
    what: str
    asked: Callable[[Spec], bool]


def _shards(spec: Spec) -> bool:
    pools = spec.effective_pools().values()
    return spec.engine.name == "vllm" and any(parallel(pool) > 1 for pool in pools)


SHORTFALLS = (
    Shortfall(
        "scheduling.mixedPool",
        "machines are not borrowed between the pools",
        lambda spec: spec.scheduling.mixed_pool != MixedPool(),
    ),
    Shortfall(
        "pools.ROLE.tensorParallel",
        "a vLLM machine computes on one GPU, however many it takes; write gpu.count: 1",
        _shards,
    ),
)


def shortfalls(spec: Spec) -> list[str]:
    """What this spec asks for in vain, as sentences."""
    return [f"{each.field}: {each.what}" for each in SHORTFALLS if each.asked(spec)]
