"""Names, labels and annotations of everything the operator makes; hashes that name revisions."""

import base64
import hashlib
import json
from typing import Any, Literal

import runtime
from controlplane.api import GROUP
from runtime.config import Role

Manifest = dict[str, Any]
Component = Literal["router", "prompt", "token", "mixed"]

ROLES: tuple[Role, ...] = ("prompt", "token", "mixed")

MANAGER = "splitwise-operator"
"""Field manager of every server-side apply, and value of the managed-by label."""

DEPLOYMENT = f"{GROUP}/deployment"
POOL = f"{GROUP}/pool"
REVISION = f"{GROUP}/revision"
TEMPLATE = f"{GROUP}/template"
APPLIED = f"{GROUP}/applied"
POWER_CAP = f"{GROUP}/power-cap"
CONFIG = f"{GROUP}/config"
LINK_STEP = f"{GROUP}/link-step"
LINK_SINCE = f"{GROUP}/link-since"
MANAGED_BY = "app.kubernetes.io/managed-by"


def digest(content: Any, length: int = 10) -> str:
    """A short name for a value: lower-case letters and digits, the same for equal JSON. 5 bits a letter."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()[:length]


def workload(deployment: str, role: Role, template: str) -> str:
    """Name of a pool's StatefulSet and ConfigMap of one template.

    A StatefulSet's name may have 52 letters, as Kubernetes adds 11 for a label; hence four of the hash.
    """
    return f"{deployment}-{role}-{template[:4]}"


def router(deployment: str) -> str:
    """Name of the router's workload, Service, ConfigMap and account."""
    return f"{deployment}-router"


def machine(deployment: str) -> str:
    """Name of the machines' account."""
    return f"{deployment}-machine"


def pool(deployment: str, role: Role) -> str:
    """Name of a pool's headless Service, disruption budget and scaler object."""
    return f"{deployment}-{role}"


def secret(deployment: str) -> str:
    """Name of the Secret that authenticates routers and machines to each other."""
    return f"{deployment}-link"


def selector(deployment: str, component: Component | None = None) -> dict[str, str]:
    """Labels that pick a deployment's pods, or those of one component. They never change."""
    labels = {DEPLOYMENT: deployment}
    return labels | ({POOL: component} if component else {})


def labels(deployment: str, component: Component | None = None) -> dict[str, str]:
    """Labels of every child and its pods."""
    common = {
        "app.kubernetes.io/name": "splitwise",
        "app.kubernetes.io/instance": deployment,
        "app.kubernetes.io/part-of": "splitwise",
        MANAGED_BY: MANAGER,
    }
    if component:
        common["app.kubernetes.io/component"] = component
    return common | selector(deployment, component)


def version_label() -> dict[str, str]:
    """Which release wrote an object. Not for pods: an upgrade would restart them."""
    return {"app.kubernetes.io/version": runtime.__version__}


def node_prefix(namespace: str, deployment: str) -> str:
    """Prefix of the labels a deployment puts on nodes: llama.inference.splitwise.dev/"""
    return f"{deployment}.{namespace}.{GROUP}/"


def text(selecting: dict[str, str]) -> str:
    """A selector as kubectl and `/scale` write it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selecting.items()))
