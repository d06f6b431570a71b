"""The API: SplitwiseDeployment as pydantic models, the one source of CRD, reference pages and rules.

deployment.py   the object and its spec, the design shorthand
model.py        what is served, and by which engine
pools.py        machines, GPUs, power caps
service.py      KV transfer, scheduling, router, SLOs
fields.py       strict base, rules (CEL and Python from one table), durations, sizes
parse.py        document -> SplitwiseDeployment, or one readable error
"""

from controlplane.api.deployment import (
    CATEGORIES,
    GROUP,
    KIND,
    PLURAL,
    SHORT_NAMES,
    SINGULAR,
    VERSION,
    Design,
    Metadata,
    Spec,
    SplitwiseDeployment,
    parallel,
)
from controlplane.api.fields import Part, Rule, seconds, size_bytes
from controlplane.api.model import Claim, Engine, EngineName, Hub, ImageVolume, Model, Source
from controlplane.api.parse import InvalidDeployment, parse, read
from controlplane.api.pools import Gpu, KvCache, Pool, Pools, PowerCap, Scaling
from controlplane.api.service import (
    KvTransfer,
    MixedPool,
    Percentiles,
    Router,
    Scheduling,
    Service,
    Slo,
)

__all__ = [
    "CATEGORIES",
    "GROUP",
    "KIND",
    "PLURAL",
    "SHORT_NAMES",
    "SINGULAR",
    "VERSION",
    "Claim",
    "Design",
    "Engine",
    "EngineName",
    "Gpu",
    "Hub",
    "ImageVolume",
    "InvalidDeployment",
    "KvCache",
    "KvTransfer",
    "Metadata",
    "MixedPool",
    "Model",
    "Part",
    "Percentiles",
    "Pool",
    "Pools",
    "PowerCap",
    "Router",
    "Rule",
    "Scaling",
    "Scheduling",
    "Service",
    "Slo",
    "Source",
    "Spec",
    "SplitwiseDeployment",
    "parallel",
    "parse",
    "read",
    "seconds",
    "size_bytes",
]
