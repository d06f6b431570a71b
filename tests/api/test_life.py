"""A deployment's life on a real API server: made, scaled, changed, put right, removed."""

from typing import Any

import pytest
from deployments import deployment

from cluster.client import Client, Object
from cluster.fixtures import Nodes
from cluster.follow import until, wait_for, wait_gone
from cluster.nodes import A100, H100
from operating import SETS, SWD, WAIT, Operator, is_so, ready


def tiny(namespace: str, **spec: Any) -> Object:
    """One prompt and one token machine without GPUs."""
    spec.setdefault("model", {"name": "tiny", "source": {"path": "/models/tiny"}})
    item = deployment(**({"engine": {"name": "reference"}} | spec))
    item["metadata"]["namespace"] = namespace
    return item


def sized(prompt: int, token: int) -> Object:
    return {"pools": {"prompt": {"replicas": prompt}, "token": {"replicas": token}}}


async def test_apply_becomes_ready(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    await api.apply(tiny(api.namespace))
    item = await wait_for(api, SWD, "tiny", ready, seconds=WAIT)
    assert item["status"]["summary"] == {
        "prompt": "1/1",
        "token": "1/1",
        "mixed": "-",
        "power": "-",
        "transport": "-",
    }
