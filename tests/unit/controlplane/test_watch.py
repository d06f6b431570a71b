"""Which events ask for a pass, and how soon; how often a pass looks at a node."""

from typing import Any

import pytest

from controlplane import gpus, watch
from controlplane.api import parse
from controlplane.gpus import Node
from controlplane.nodes import changes, wanted
from controlplane.reconcile import Key
from controlplane.target import Target
from deployments import deployment

KEY = ("ns", "tiny")


class Woken:
    """Takes the wakes that events make."""

    def __init__(self) -> None:
        self.wakes: list[tuple[Key, float]] = []

    def __call__(self, key: Key, after: float) -> None:
        self.wakes.append((key, after))

    def last(self) -> list[tuple[Key, float]]:
        wakes, self.wakes = self.wakes, []
        return wakes


def event(kind: str, generation: int = 1, version: str = "") -> dict[str, Any]:
    metadata = {"name": "tiny", "generation": generation, "resourceVersion": version}
    return {"type": kind, "object": {"metadata": metadata}}


async def test_an_edit_is_looked_at_now_another_touch_soon_and_our_own_status_not_at_all() -> None:
    woken, told = Woken(), {KEY: "7"}
    changed = watch._edited(woken, told)

    async def say(what: dict[str, Any]) -> list[tuple[Key, float]]:
        await changed(event=what, name="tiny", namespace="ns", labels={})
        return woken.last()

    assert await say(event("ADDED")) == [(KEY, 0.0)]
    assert await say(event("MODIFIED")) == [(KEY, watch.SOON_SECONDS)]
    assert await say(event("MODIFIED", version="7")) == []
    assert await say(event("MODIFIED", version="8")) == [(KEY, watch.SOON_SECONDS)]
    assert await say(event("MODIFIED", 2, version="7")) == [(KEY, 0.0)]
    assert await say(event("DELETED", 2)) == [(KEY, 0.0)]
    assert told == {}
    assert await say(event("ADDED", 2)) == [(KEY, 0.0)]


async def test_a_child_wakes_its_deployment_soon() -> None:
    woken = Woken()
    labels: Any = {"splitwise.dev/deployment": "tiny"}
    await watch._child_changed(woken)(namespace="ns", labels=labels, name="tiny-prompt")
    assert woken.last() == [(KEY, watch.SOON_SECONDS)]


@pytest.mark.parametrize("product", ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-SXM5-94GB"])
def test_a_thousand_nodes_of_one_product_are_understood_once(product: str) -> None:
    """Normalising a product costs a dozen regular expressions; a pass must not do it node by node."""
    document = deployment(design="HH", model={"name": "m", "source": {"path": "/m"}})
    target = Target(parse(document))
    nodes = [Node(f"n{number}", {gpus.PRODUCT: product}, gpus=8) for number in range(1000)]
    for remembered in (gpus.family, gpus.sliced, gpus.unlisted):
        remembered.cache_clear()
    labels = wanted(target, nodes, ())
    assert len(list(changes("tiny.default.splitwise.dev/", labels, nodes))) == len(labels)
    assert len(labels) == (1000 if product.endswith("94GB") else 0)
    assert gpus.family.cache_info().misses == 1
