"""How requests are served: KV transfer, scheduling, the router, and the latencies that were promised."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controlplane.api.fields import Bool, Duration, Int, Latency, Part, Rule
from controlplane.api.pools import PodTemplate

TransportName = Literal["auto", "shm", "tcp", "nixl", "mscclpp"]
ClientDisconnect = Literal["stop", "finish"]
DegradedMode = Literal["fail", "mixed", "recompute"]


class KvTransfer(Part):
    """How a KV-cache travels from the prompt machine to the token machine."""

    transport: TransportName = Field(
        "auto",
        description="auto takes the fastest that both machines have. shm is shared memory on one host; tcp"
        " works everywhere; nixl and mscclpp use RDMA.",
    )
    require_rdma: Bool = Field(
        False,
        alias="requireRDMA",
        description="Refuse to serve over anything but RDMA, instead of being quietly slow.",
    )
    layerwise_above_tokens: Int = Field(
        512,
        ge=0,
        description="Prompt batches of at least so many tokens travel layer by layer while the prompt is"
        " being computed; smaller ones in one piece afterwards.",
    )

    rules: ClassVar = (
        Rule(
            cel="!self.requireRDMA || !(self.transport in ['shm', 'tcp'])",
            message="shm and tcp are no RDMA; write transport: auto, nixl or mscclpp, or drop requireRDMA",
            holds=lambda self: not self.require_rdma or self.transport not in ("shm", "tcp"),
            field="requireRDMA",
        ),
    )


class MixedPool(Part):
    """When a machine of one pool is borrowed by the other."""

    enabled: Bool = Field(True, description="Whether machines may be borrowed at all.")
    prompt_queue_tokens: Int = Field(
        8192,
        ge=1,
        description="Borrow above so many pending prompt tokens on the least loaded machine.",
    )
    token_queue_tokens: Int = Field(
        8192,
        ge=1,
        description="Borrow above so many pending output tokens on the least loaded machine.",
    )
    preemptions: Int = Field(
        4, ge=0, le=100, description="How often the tokens of one request may give way to prompts."
    )


class Scheduling(Part):
    """Limits of the queues, and what happens to requests that no machine can take."""

    prompt_batch_tokens: Int = Field(2048, ge=1, description="Most prompt tokens in one batch.")
    sequences: Int = Field(64, ge=1, le=4096, description="Most requests a machine works on at once.")
    mixed_pool: MixedPool = Field(
        MixedPool(), description="Borrowing machines between the pools. Not done by this release."
    )
    wait_for_machines: Duration = Field(
        "10s", description="How long a request waits for a machine before it is refused."
    )
    restarts: Int = Field(
        2, ge=0, le=10, description="How often a request is started again after a machine was lost."
    )


class Service(Part):
    """The Kubernetes Service in front of the routers."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        "ClusterIP", description="Type of the Service."
    )
    annotations: dict[str, str] = Field({}, description="Annotations of the Service.")


class Router(Part):
    """The OpenAI-compatible front of the deployment."""

    replicas: Int = Field(1, ge=1, le=64, description="How many routers.")
    port: Int = Field(8000, ge=1, le=65535, description="Port that clients connect to.")
    client_disconnect: ClientDisconnect = Field(
        "stop",
        description="What becomes of an answer whose client has left: stop ends it at once on every machine;"
        " finish computes it to its end, for nobody.",
    )
    service: Service = Field(Service(), description="The Service in front of the routers.")
    pod_template: PodTemplate = Field({}, description="Fields of the pod to add or override.")


class Percentiles(Part):
    """Limits for one latency at three percentiles."""

    p50: Latency | None = Field(None, description="Limit for half of the requests.")
    p90: Latency | None = Field(None, description="Limit for 90 per cent of the requests.")
    p99: Latency | None = Field(None, description="Limit for 99 per cent of the requests.")


def _limits(p50: str, p90: str, p99: str) -> Percentiles:
    return Percentiles(p50=p50, p90=p90, p99=p99)


class Slo(Part):
    """The nine latencies that were promised; the defaults are the paper's (Table VI)."""

    ttft: Percentiles = Field(_limits("2x", "3x", "6x"), description="Time to first token.")
    tbt: Percentiles = Field(_limits("1.25x", "1.5x", "5x"), description="Time between tokens.")
    e2e: Percentiles = Field(_limits("1.25x", "1.5x", "5x"), alias="e2e", description="End to end.")
    reference: Annotated[str, Field(max_length=200)] = Field(
        "", description='Profile that slowdowns such as "2x" are measured against; empty for a lone DGX-A100.'
    )
