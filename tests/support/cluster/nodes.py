"""Manifests of pretend nodes, labelled as GPU feature discovery labels real ones."""

import dataclasses
from collections.abc import Mapping

from cluster.client import Object
from cluster.steering import NODE_LABEL

PLAIN = {"cpu": "96", "memory": "1Ti", "pods": "110", "ephemeral-storage": "1Ti"}


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """A card, in the words of its labels; memory in MiB."""

    product: str
    family: str
    memory_mib: int


H100 = Gpu("NVIDIA-H100-80GB-HBM3", "hopper", 81559)
H200 = Gpu("NVIDIA-H200", "hopper", 143771)
A100 = Gpu("NVIDIA-A100-SXM4-80GB", "ampere", 81920)
L40S = Gpu("NVIDIA-L40S", "ada-lovelace", 46068)


def gpu_labels(gpu: Gpu, count: int) -> dict[str, str]:
    """The labels of a node that holds `count` cards of one kind."""
    labels = {
        "present": "true",
        "product": gpu.product,
        "family": gpu.family,
        "memory": str(gpu.memory_mib),
        "count": str(count),
        "replicas": "1",
    }
    mig = {"nvidia.com/mig.capable": "true", "nvidia.com/mig.strategy": "single"}
    return {f"nvidia.com/gpu.{key}": value for key, value in labels.items()} | mig


def node(
    name: str,
    *,
    gpu: Gpu | None = None,
    count: int = 8,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    capacity: Mapping[str, str] | None = None,
) -> Object:
    """A node for the pretend kubelet to adopt. Create it, don't apply it: its status would be lost.

    `capacity` adds to the plain one or overrides it: {"rdma/hca": "8"}.
    """
    plain = {NODE_LABEL: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    resources = dict(PLAIN)
    if gpu is not None:
        plain |= gpu_labels(gpu, count)
        resources["nvidia.com/gpu"] = str(count)
    resources |= capacity or {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": plain | {"kubernetes.io/arch": "amd64"} | dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "status": {"capacity": resources, "allocatable": resources},
    }
