"""Settings of the operator itself: rendered by the chart, read at the start."""

from pathlib import Path
from typing import Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

import runtime
from controlplane.api.fields import Duration


class OperatorSettings(BaseModel):
    """What an administrator decides for all deployments."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    router_image: str = Field(f"splitwise-runtime:{runtime.__version__}", description="Image of the routers.")
    machine_image: str = Field(
        f"splitwise-runtime:{runtime.__version__}",
        description="Image of the machines, where a deployment names none.",
    )
    image_pull_secrets: tuple[str, ...] = Field(
        (), description="Secrets with which the nodes pull both images; they must exist in each namespace."
    )
    namespaces: tuple[str, ...] = Field(
        (), description="Namespaces whose deployments are served; empty for all."
    )
    rdma_resource: str = Field("rdma/hca", description="Resource that grants a pod its RDMA device.")
    topology_key: str = Field(
        "topology.kubernetes.io/zone",
        description="Node label that names an RDMA domain; the machines of a deployment prefer to share one.",
    )
    network_policies: bool = Field(
        True, description="Let only a deployment's own pods reach its machines' link and KV ports."
    )
    disruption_budgets: bool = Field(True, description="Let a drain take one machine of a pool at a time.")
    service_monitors: bool = Field(True, description="Make a ServiceMonitor where that kind exists.")
    ask_routers: bool = Field(
        True,
        description="Ask routers which machines they know before a deployment is called ready; the operator"
        " must be able to reach their pods.",
    )
    link_rotation: Duration = Field(
        "720h",
        description="Age at which a key of a link Secret is replaced, without a restart; 0s: never.",
    )
    link_settling: Duration = Field(
        "10m",
        description="How long each step of that waits, so that all kubelets have brought the one before to"
        " their pods; they may take two minutes.",
    )
    lease_seconds: int = Field(
        15, ge=2, le=600, description="How long after a leader's last sign of life another one takes over."
    )
    resync_seconds: int = Field(
        300, ge=10, description="How often every deployment is looked at without a cause."
    )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Parse a YAML file; a problem is a ValueError that names the file, the key and what is expected."""
        try:
            return cls.model_validate(yaml.safe_load(path.read_text()) or {})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ValueError(f"{path}: {where}: {first['msg']}") from error
        except (OSError, yaml.YAMLError) as error:
            raise ValueError(f"{path}: {error}") from error
