"""GPU families by GPU feature discovery's product labels, whatever suffix a vendor adds.

"NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe" and "NVIDIA-H100-NVL" are all of family H100. A slice (MIG) or
a shared card is not a whole one, so no family takes it; `gpu.products` may still name it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

PRODUCT = "nvidia.com/gpu.product"
COUNT = "nvidia.com/gpu.count"
RESOURCE = "nvidia.com/gpu"

PRODUCTS: dict[str, tuple[str, ...]] = {
    "A100": (
        "NVIDIA-A100-SXM4-40GB",
        "NVIDIA-A100-SXM4-80GB",
        "NVIDIA-A100-PCIE-40GB",
        "NVIDIA-A100-PCIE-80GB",
        "NVIDIA-A100-80GB-PCIe",
        "A100-SXM4-40GB",
        "A100-SXM4-80GB",
        "A100-PCIE-40GB",
    ),
    "H100": (
        "NVIDIA-H100-80GB-HBM3",
        "NVIDIA-H100-PCIe",
        "NVIDIA-H100-NVL",
        "NVIDIA-H100-SXM5-80GB",
        "NVIDIA-H100-96GB-HBM3",
    ),
    "H200": ("NVIDIA-H200", "NVIDIA-H200-NVL"),
    "L40S": ("NVIDIA-L40S",),
    "B200": ("NVIDIA-B200",),
}
"""Product labels seen in the wild. Pods ask for these by name, so that a cluster autoscaler finds nodes that
do not exist yet; a node with another spelling is found by its normalised family and labelled for the pool."""

PROFILED = ("A100", "H100")
"""Families the paper measured; of others nothing is claimed."""

_SLICED = re.compile(r"-(MIG-[0-9a-z.]+|SHARED)$", re.IGNORECASE)
_VENDOR = re.compile(r"^(NVIDIA|TESLA|QUADRO|GEFORCE|RTX)$")
_DETAIL = re.compile(r"^([0-9]+GI?B|HBM[0-9]E?|SXM[0-9]*|PCIE|NVL[0-9]*)$")


@dataclass(frozen=True, slots=True)
class Node:
    """What matters of a node: its name, the labels we read or write, and how many GPUs pods can have."""

    name: str
    labels: Mapping[str, str]
    gpus: int

    @property
    def product(self) -> str:
        return self.labels.get(PRODUCT, "")


# A cluster has many nodes and few products, and every pass looks at every node.
_remembered = lru_cache(maxsize=1024)


@_remembered
def family(product: str) -> str:
    """The normalised family of a product label: "H100", "L40S", "GH200". Unknown cards get their own name."""
    parts = _SLICED.sub("", product).upper().replace("_", "-").split("-")
    model = [part for part in parts if not _VENDOR.match(part) and not _DETAIL.match(part)]
    return "-".join(model)


@_remembered
def sliced(product: str) -> bool:
    """Whether the label speaks of slices of a card (MIG) or of a card shared by time slicing."""
    return bool(_SLICED.search(product))


def matches(node: Node, wanted_family: str | None, products: tuple[str, ...]) -> bool:
    """Whether a node's GPUs are of the named products or, without any, whole ones of the family."""
    if products:
        return node.product in products
    if wanted_family is None or not node.product or sliced(node.product):
        return False
    return family(node.product) == wanted_family.upper()


@_remembered
def unlisted(product: str) -> bool:
    """Whether pods cannot ask for this product through their family's list, so its node needs our label."""
    return product not in PRODUCTS.get(family(product), ())
