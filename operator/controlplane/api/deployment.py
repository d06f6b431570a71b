"""SplitwiseDeployment: one model behind one OpenAI endpoint, on pools of prompt and token machines."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from controlplane.api.fields import Duration, Int, Part, Rule
from controlplane.api.model import Engine, Model
from controlplane.api.pools import Gpu, Pool, Pools, PowerCap
from controlplane.api.service import DegradedMode, KvTransfer, Router, Scheduling, Slo
from runtime.config import Role

GROUP = "splitwise.dev"
VERSION = "v1alpha1"
KIND = "SplitwiseDeployment"
PLURAL = "splitwisedeployments"
SINGULAR = "splitwisedeployment"
SHORT_NAMES = ("swd",)
CATEGORIES = ("inference",)

Design = Literal["AA", "HH", "HA", "HHcap"]
_FAMILY = {"A": "A100", "H": "H100"}
_ROLES: tuple[Role, ...] = ("prompt", "token", "mixed")


def designed(design: Design, role: Role, pool: Pool) -> Pool:
    """The pool with the design's GPUs and power cap where it names none.

    The two letters are the GPUs of the prompt and the token machines; HHcap halves the power of the token
    machines' GPUs (paper section IV-D). Mixed machines get the prompt machines' GPUs and no cap.
    """
    family = _FAMILY[design[role == "token"]]
    gpu = pool.gpu or Gpu()
    if gpu.family is None and not gpu.products:
        gpu = gpu.model_copy(update={"family": family})
    cap = pool.power_cap
    if cap is None and design == "HHcap" and role == "token":
        cap = PowerCap(percent=50)
    return pool.model_copy(update={"gpu": gpu, "power_cap": cap})


def _cel_without_design(condition: str) -> str:
    """CEL: a design is set, or `condition` holds for each pool that is there, called POOL in it."""
    pools = " && ".join(
        f"(!has(self.pools.{role}) || {condition.replace('POOL', f'self.pools.{role}')})" for role in _ROLES
    )
    return f"has(self.design) || ({pools})"


def _cel_tensor_parallel(role: str) -> str:
    """CEL: the effective tensor parallelism of a pool that is there."""
    pool = f"self.pools.{role}"
    return (
        f"(has({pool}.tensorParallel) ? {pool}.tensorParallel :"
        f" has({pool}.gpu) ? {pool}.gpu.count : has(self.design) ? 8 : 1)"
    )


def _cel_equal_tensor_parallel() -> str:
    pairs = (("prompt", "token"), ("prompt", "mixed"), ("token", "mixed"))
    return " && ".join(
        f"(!has(self.pools.{a}) || !has(self.pools.{b})"
        f" || {_cel_tensor_parallel(a)} == {_cel_tensor_parallel(b)})"
        for a, b in pairs
    )


class Spec(Part):
    """What is wanted."""

    model: Model = Field(description="The model to serve.")
    engine: Engine = Field(Engine(), description="What computes the model on each machine.")
    design: Design | None = Field(
        None,
        description="Shorthand for the GPUs of the prompt and the token machines (A: A100, H: H100) and, with"
        " HHcap, a power cap of 50 per cent on the token machines. Fields of a pool go before it.",
    )
    pools: Pools = Field(description="The machines.")
    kv_transfer: KvTransfer = Field(KvTransfer(), description="How KV-caches travel between machines.")
    scheduling: Scheduling = Field(Scheduling(), description="Limits of the queues.")
    degraded_mode: DegradedMode = Field(
        "fail",
        description="When a pool has no machine or a transfer fails: fail the request, let one machine"
        " do all of it (mixed), or let the token machine compute the prompt again (recompute).",
    )
    router: Router = Field(Router(), description="The OpenAI-compatible front.")
    slo: Slo | None = Field(
        None, description="The latencies that were promised. Not watched by this release."
    )
    request_timeout: Duration = Field("600s", description="The longest a request may take.")
    drain_seconds: Int = Field(
        30,
        ge=1,
        le=3600,
        description="How long a machine or router that is to stop finishes what it has begun. What a machine"
        " cannot finish by then starts again on another one. A change replaces all pods.",
    )

    rules: ClassVar = (
        Rule(
            cel=_cel_without_design(
                "!has(POOL.gpu) || has(POOL.gpu.family)"
                " || (has(POOL.gpu.products) && POOL.gpu.products.size() > 0)"
            ),
            message="a gpu needs family or products unless design is set; add gpu.family, such as H100",
            holds=lambda self: (
                bool(self.design)
                or all(p.gpu is None or p.gpu.family or p.gpu.products for p in self.written_pools().values())
            ),
            field="pools",
        ),
        Rule(
            cel=_cel_without_design("!has(POOL.powerCap) || has(POOL.gpu)"),
            message="a powerCap needs GPUs to cap; add gpu to that pool, or set design",
            holds=lambda self: (
                bool(self.design) or all(not p.power_cap or p.gpu for p in self.written_pools().values())
            ),
            field="pools",
        ),
        Rule(
            cel=_cel_equal_tensor_parallel(),
            message="the pools differ in tensorParallel (by default gpu.count), so their KV-caches do not fit"
            " together; write the same tensorParallel for all",
            holds=lambda self: len({parallel(p) for p in self.effective_pools().values()}) <= 1,
            field="pools",
        ),
    )

    def written_pools(self) -> dict[Role, Pool]:
        """The pools as written, by role."""
        pools: dict[Role, Pool | None] = {
            "prompt": self.pools.prompt,
            "token": self.pools.token,
            "mixed": self.pools.mixed,
        }
        return {role: pool for role, pool in pools.items() if pool is not None}

    def effective_pools(self) -> dict[Role, Pool]:
        """The pools with what the design sets, by role."""
        written = self.written_pools()
        if self.design is None:
            return written
        return {role: designed(self.design, role, pool) for role, pool in written.items()}


def parallel(pool: Pool) -> int:
    """How many GPUs share each layer on the machines of an effective pool; 1 without GPUs."""
    return pool.tensor_parallel or (pool.gpu.count if pool.gpu else 1)


class Metadata(Part):
    """The part of Kubernetes' ObjectMeta that matters here; the rest passes."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    namespace: str = "default"
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class SplitwiseDeployment(Part):
    """One model behind one OpenAI endpoint, served by pools of prompt and token machines."""

    api_version: Literal["splitwise.dev/v1alpha1"]
    kind: Literal["SplitwiseDeployment"]
    metadata: Metadata
    spec: Spec = Field(description="What is wanted.")
    status: dict[str, Any] | None = Field(None, description="What is so; written by the operator.")

    rules: ClassVar = (
        Rule(
            cel="self.metadata.name.size() <= 40",
            message="longer than 40 characters, so names made from it would not fit; shorten it",
            holds=lambda self: len(self.metadata.name) <= 40,
            field="metadata.name",
        ),
    )
