"""What is so: the status of a SplitwiseDeployment, as the operator writes it and people read it.

Conditions are metav1 conditions. Lists are bounded, so the object stays small with any number of nodes.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

NODES_SHOWN = 32


class Shown(BaseModel):
    """A frozen piece of status; what an older or newer release wrote besides is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True)

    def document(self) -> dict[str, Any]:
        """As the API server stores it: camelCase, without what is not known."""
        return self.model_dump(by_alias=True, exclude_none=True)


class Condition(Shown):
    """One metav1 condition."""

    type: Annotated[str, Field(max_length=316)] = Field(description="What is judged, such as Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Annotated[str, Field(max_length=1024)] = Field(
        description="Why, as one stable CamelCase word for programs."
    )
    message: Annotated[str, Field(max_length=32768)] = Field(
        "", description="Why, as a sentence for people, with what happens or is to be done next."
    )
    last_transition_time: str = Field(
        description="When the status last changed.", json_schema_extra={"format": "date-time"}
    )
    observed_generation: int = Field(0, description="The generation of the object that was judged.")


class PowerCapStatus(Shown):
    """The power cap of a pool's GPUs, in watts per GPU; a number that is not known is left out."""

    requested_percent: int | None = Field(None, description="Asked for, in per cent of the rated limit.")
    requested_watts: int | None = Field(None, description="Asked for, in watts.")
    effective_watts: int | None = Field(None, description="The limit the cards enforce.")
    measured_watts: int | None = Field(None, description="What the cards draw.")
    clamped: bool | None = Field(None, description="Whether a card allows only another limit than asked for.")
    nodes_applied: int = Field(0, description="Nodes on which the cap is in force.")
    nodes_failed: int = Field(0, description="Nodes on which it could not be set.")


class PoolStatus(Shown):
    """The machines of one role."""

    desired: int = Field(0, description="Machines wanted.")
    replicas: int = Field(0, description="Machines that exist, of any revision.")
    ready_replicas: int = Field(0, description="Machines that are ready, of any revision.")
    updated_replicas: int = Field(0, description="Machines that run what the spec says now.")
    selector: str = Field("", description="Label selector of the machines' pods.")
    nodes: tuple[str, ...] = Field(
        (), max_length=NODES_SHOWN, description=f"Nodes the machines run on; the first {NODES_SHOWN}."
    )
    gpu_product: str | None = Field(None, description="Product of their GPUs, as the nodes are labelled.")
    transport: str | None = Field(None, description="KV transport in use, as the machines report it.")
    power_cap: PowerCapStatus | None = Field(None, description="The power cap, if one is asked for.")


class PoolStatuses(Shown):
    """The pools by role."""

    prompt: PoolStatus | None = Field(None, description="The prompt machines.")
    token: PoolStatus | None = Field(None, description="The token machines.")
    mixed: PoolStatus | None = Field(None, description="The mixed machines.")


class RouterStatus(Shown):
    """The routers."""

    replicas: int = Field(0, description="Routers wanted.")
    ready_replicas: int = Field(0, description="Routers that are ready.")
    machines: int | None = Field(None, description="Machines the routers can use, as they report it.")
    split_share: str | None = Field(
        None, description="Share of finished requests whose prompt and tokens ran on different machines."
    )


class Summary(Shown):
    """Numbers as text, for the columns of `kubectl get`."""

    prompt: str = Field("-", description="Prompt machines, ready and wanted: 2/3.")
    token: str = Field("-", description="Token machines, ready and wanted.")
    mixed: str = Field("-", description="Mixed machines, ready and wanted.")
    power: str = Field("-", description="Power cap of the token machines' GPUs.")
    transport: str = Field("-", description="KV transport in use.")


class Status(Shown):
    """What is so; written by the operator."""

    observed_generation: int = Field(0, description="The generation of the spec this status speaks of.")
    conditions: tuple[Condition, ...] = Field(
        (),
        description="What holds, what does not, and why. Ready is the summary.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    design: str | None = Field(None, description="AA, HH, HA, HHcap, or Custom.")
    endpoint: str | None = Field(None, description="Where OpenAI clients inside the cluster connect to.")
    revision: str | None = Field(
        None, description="Revision of the KV layout; machines of different revisions are never paired."
    )
    summary: Summary | None = Field(None, description="Numbers as text, for the columns of kubectl get.")
    pools: PoolStatuses | None = Field(None, description="The machines.")
    router: RouterStatus | None = Field(None, description="The routers.")
