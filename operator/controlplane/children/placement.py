"""Which nodes a machine may run on, and which devices it takes there."""

from typing import Any

from controlplane import gpus, names
from controlplane.api.pools import Gpu, Pool
from controlplane.children.config import RDMA
from controlplane.names import Manifest
from controlplane.target import Target

FAMILY_LABEL = "gpu"
"""Last part of the label that marks a node whose product label no pod can ask for by name."""


def affinity(target: Target, gpu: Gpu | None) -> Manifest:
    """Nodes with the pool's GPUs, and near the deployment's other machines if there is a choice."""
    near = {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 50,
                "podAffinityTerm": {
                    "topologyKey": target.settings.topology_key,
                    "labelSelector": {
                        "matchLabels": names.selector(target.name),
                        "matchExpressions": [{"key": names.REVISION, "operator": "Exists"}],
                    },
                },
            }
        ]
    }
    result: Manifest = {"podAffinity": near}
    if gpu:
        terms = [{"matchExpressions": [term]} for term in _terms(target, gpu)]
        result["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    return result


def _terms(target: Target, gpu: Gpu) -> list[Manifest]:
    """One of these must hold: a product the pod can name, or our own label on a node that spells it oddly.

    The terms never depend on the nodes that happen to exist: pods would restart when one joins."""
    if gpu.products:
        return [_one_of(gpus.PRODUCT, gpu.products)]
    family = (gpu.family or "").upper()
    own = names.node_prefix(target.namespace, target.name) + FAMILY_LABEL
    known = gpus.PRODUCTS.get(family, ())
    return [_one_of(gpus.PRODUCT, known)] * bool(known) + [_one_of(own, (family,))]


def _one_of(label: str, values: tuple[str, ...]) -> Manifest:
    return {"key": label, "operator": "In", "values": list(values)}


def devices(target: Target, pool: Pool) -> dict[str, str]:
    """Device resources of one machine: its GPUs, and an RDMA device where RDMA is asked for."""
    found: dict[str, str] = {}
    if pool.gpu:
        found[gpus.RESOURCE] = str(pool.gpu.count)
        if wants_rdma(target):
            found[target.settings.rdma_resource] = "1"
    return found


def wants_rdma(target: Target) -> bool:
    wanted = target.deployment.spec.kv_transfer
    return wanted.require_rdma or wanted.transport in RDMA


def tolerations(pool: Pool) -> list[dict[str, Any]]:
    """GPU nodes are often tainted with their resource."""
    if not pool.gpu:
        return []
    return [{"key": gpus.RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
