"""The pools of machines: how many, on which GPUs, under which power cap."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from controlplane.api.fields import Int, Part, Rule, Size

PodTemplate = Annotated[
    dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
"""A partial PodTemplateSpec, merged over the one the operator renders."""


class Gpu(Part):
    """Which nodes a machine may run on, by GPU feature discovery's labels, and how many GPUs it takes."""

    family: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=63,
        description="GPU family such as H100, A100 or L40S, matched against the normalised product label of"
        " each node. Any family may be written; one without a profile gets no performance claim.",
    )
    count: Int = Field(
        8, ge=1, le=64, description="GPUs of one machine. The default is the paper's machine of eight."
    )
    products: tuple[Annotated[str, Field(max_length=63)], ...] = Field(
        (),
        max_length=16,
        description="Exact values of the nvidia.com/gpu.product label to match instead of the family.",
    )


class PowerCap(Part):
    """A limit on the power of each GPU of the pool; may be changed while machines run."""

    percent: Int | None = Field(None, ge=1, le=100, description="Per cent of the card's rated power limit.")
    watts: Int | None = Field(None, ge=1, le=10000, description="Watts per GPU.")

    rules: ClassVar = (
        Rule(
            cel="has(self.percent) != has(self.watts)",
            message="write either percent or watts, and not both",
            holds=lambda self: (self.percent is None) != (self.watts is None),
        ),
    )


class KvCache(Part):
    """The KV-cache of one machine."""

    memory: Size | None = Field(
        None,
        description='Memory for the KV-cache, such as "40Gi". Left out: what the engine finds free on the'
        ' GPU; "512Mi" with the reference engine.',
    )


class Scaling(Part):
    """Who decides how many machines the pool has."""

    owner: Literal["spec", "external"] = Field(
        "spec",
        description="spec: this object's replicas. external: an autoscaler, through the pool's scaler object;"
        " replicas is then only the number to start with, and the operator never writes it again.",
    )


class Pool(Part):
    """Machines of one role. Each machine is one pod, or one process when run locally."""

    replicas: Int = Field(1, ge=0, le=1000, description="How many machines.")
    gpu: Gpu | None = Field(None, description="GPUs of each machine. Left out, and no design set: none.")
    power_cap: PowerCap | None = Field(None, description="Limit on the power of each GPU.")
    tensor_parallel: Int | None = Field(
        None,
        ge=1,
        le=64,
        description="GPUs that share each layer. Left out: all GPUs of the machine. This release computes on"
        " one.",
    )
    kv_cache: KvCache = Field(KvCache(), description="The KV-cache of each machine.")
    pod_template: PodTemplate = Field({}, description="Fields of the pod to add or override.")
    scaling: Scaling = Field(Scaling(), description="Who sets the number of machines.")

    rules: ClassVar = (
        Rule(
            cel="!has(self.tensorParallel) || !has(self.gpu) || self.tensorParallel <= self.gpu.count",
            message="more than the GPUs of a machine; write at most gpu.count",
            holds=lambda self: (
                self.tensor_parallel is None or self.gpu is None or self.tensor_parallel <= self.gpu.count
            ),
            field="tensorParallel",
        ),
    )


class Pools(Part):
    """Prompt machines compute prompts, token machines continue from the second token, mixed ones do both."""

    prompt: Pool | None = Field(None, description="Machines that compute prompts.")
    token: Pool | None = Field(None, description="Machines that produce the tokens after the first.")
    mixed: Pool | None = Field(
        None,
        description="Machines that do both: the whole service if alone, else relief for the others.",
    )

    rules: ClassVar = (
        Rule(
            cel="has(self.prompt) || has(self.token) || has(self.mixed)",
            message="no pool is named; write prompt and token, or mixed, or all three",
            holds=lambda self: bool(self.prompt or self.token or self.mixed),
        ),
        Rule(
            cel="has(self.mixed) || !has(self.prompt) || has(self.token)",
            message="prompt machines need somebody to continue; add token (or mixed)",
            holds=lambda self: bool(self.mixed or not self.prompt or self.token),
        ),
        Rule(
            cel="has(self.mixed) || !has(self.token) || has(self.prompt)",
            message="token machines need somebody to start; add prompt (or mixed)",
            holds=lambda self: bool(self.mixed or not self.token or self.prompt),
        ),
    )
