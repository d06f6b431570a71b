"""SplitwisePool: the size of one externally scaled pool, with `/scale` for HPA, KEDA and `kubectl scale`.

The operator makes one, named DEPLOYMENT-ROLE, for each pool whose `scaling.owner` is `external`. It seeds
`spec.replicas` once and never writes it again.
"""

from pydantic import Field

from controlplane.api.fields import Int, Part
from controlplane.api.status import Shown

SCALER_KIND = "SplitwisePool"
SCALER_PLURAL = "splitwisepools"
SCALER_SINGULAR = "splitwisepool"
SCALER_SHORT_NAMES = ("swp",)


class ScalerSpec(Part):
    """How many machines an autoscaler wants."""

    replicas: Int = Field(1, ge=0, le=1000, description="How many machines.")


class ScalerStatus(Shown):
    """How many machines there are."""

    replicas: int = Field(0, description="Machines that exist.")
    ready_replicas: int = Field(0, description="Machines that are ready.")
    selector: str = Field("", description="Label selector of the machines' pods.")


class SplitwisePool(Part):
    """The size of one pool of a SplitwiseDeployment whose scaling is external."""

    spec: ScalerSpec = Field(ScalerSpec(), description="What is wanted.")
    status: ScalerStatus | None = Field(None, description="What is so; written by the operator.")
