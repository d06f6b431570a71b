"""Product labels into families."""

import pytest

from controlplane.gpus import PRODUCTS, Node, family, matches, sliced, unlisted


def node(product: str) -> Node:
    return Node("n", {"nvidia.com/gpu.product": product}, gpus=8)


@pytest.mark.fault("GPU-1")
@pytest.mark.parametrize(
    ("product", "expected"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA-H100-PCIe", "H100"),
        ("NVIDIA-H100-NVL", "H100"),
        ("NVIDIA-A100-SXM4-80GB", "A100"),
        ("A100-SXM4-40GB", "A100"),
        ("NVIDIA-H200", "H200"),
        ("NVIDIA-L40S", "L40S"),
        ("Tesla-V100-SXM2-16GB", "V100"),
        ("NVIDIA-GH200-480GB", "GH200"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "H100"),
        ("NVIDIA-A100-SXM4-80GB-SHARED", "A100"),
        ("Odd-Card-9", "ODD-CARD-9"),
    ],
)
def test_families(product: str, expected: str) -> None:
    assert family(product) == expected


def test_every_listed_product_is_of_its_family() -> None:
    for name, products in PRODUCTS.items():
        assert {family(product) for product in products} == {name}
        assert not any(unlisted(product) for product in products)


def test_a_family_takes_whole_cards_only() -> None:
    assert matches(node("NVIDIA-H100-PCIe"), "h100", ())
    assert not matches(node("NVIDIA-H200"), "H100", ())
    assert not matches(node("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"), "H100", ())
    assert not matches(node("NVIDIA-A100-SXM4-80GB-SHARED"), "A100", ())
    assert sliced("NVIDIA-A100-SXM4-80GB-SHARED")


def test_named_products_are_taken_as_they_are() -> None:
    slice_of_a_card = "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
    assert matches(node(slice_of_a_card), None, (slice_of_a_card,))
    assert not matches(node("NVIDIA-H100-PCIe"), "H100", (slice_of_a_card,))


def test_a_node_without_gpus_is_nobodys() -> None:
    assert not matches(Node("n", {}, gpus=0), "H100", ())
