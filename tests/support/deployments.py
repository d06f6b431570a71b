"""SplitwiseDeployments for tests, and one that breaks each rule: for the models and for a real API server."""

import copy
from collections.abc import Mapping
from typing import Any


def deployment(**spec: Any) -> dict[str, Any]:
    """A valid document; keyword arguments replace fields of the spec, None removes one."""
    whole: dict[str, Any] = {
        "model": {"name": "tiny"},
        "engine": {"name": "vllm"},
        "pools": {"prompt": {"replicas": 1}, "token": {"replicas": 1}},
    }
    whole.update(copy.deepcopy(spec))
    return {
        "apiVersion": "splitwise.dev/v1alpha1",
        "kind": "SplitwiseDeployment",
        "metadata": {"name": "tiny", "namespace": "default"},
        "spec": {field: value for field, value in whole.items() if value is not None},
    }


def named(name: str) -> dict[str, Any]:
    """A valid document with another name."""
    return deployment() | {"metadata": {"name": name, "namespace": "default"}}


def _pools(prompt: Mapping[str, Any], token: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt": dict(prompt), "token": dict(token)}


_H100 = {"family": "H100", "count": 8}

BREAKS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "spec.model.source",
        "exactly one of hub",
        deployment(model={"name": "tiny", "source": {"path": "/weights", "package": "weights"}}),
    ),
    ("spec.model.source", "exactly one of hub", deployment(model={"name": "tiny", "source": {}})),
    ("spec.engine.args", "remove them", deployment(engine={"name": "vllm", "args": ["--model=other"]})),
    ("spec.engine.args", "remove them", deployment(engine={"name": "vllm", "args": ["--block-size", "8"]})),
    ("spec.engine.args", "no arguments", deployment(engine={"name": "reference", "args": ["--quick"]})),
    ("spec.pools", "no pool is named", deployment(pools={})),
    ("spec.pools", "add token", deployment(pools={"prompt": {}})),
    ("spec.pools", "add prompt", deployment(pools={"token": {}})),
    (
        "spec.pools.token.powerCap",
        "either percent or watts",
        deployment(pools=_pools({"gpu": _H100}, {"gpu": _H100, "powerCap": {"percent": 50, "watts": 350}})),
    ),
    (
        "spec.pools.token.powerCap",
        "either percent or watts",
        deployment(pools=_pools({"gpu": _H100}, {"gpu": _H100, "powerCap": {}})),
    ),
    (
        "spec.pools.prompt.tensorParallel",
        "at most gpu.count",
        deployment(design="HH", pools=_pools({"gpu": {"count": 4}, "tensorParallel": 8}, {})),
    ),
    ("spec.pools", "family or products", deployment(pools=_pools({"gpu": {"count": 8}}, {"gpu": _H100}))),
    ("spec.pools", "needs GPUs to cap", deployment(pools=_pools({}, {"powerCap": {"percent": 50}}))),
    ("spec.pools", "differ in tensorParallel", deployment(pools=_pools({"gpu": _H100}, {}))),
    (
        "spec.pools",
        "differ in tensorParallel",
        deployment(design="HA", pools=_pools({"tensorParallel": 4}, {"gpu": {"count": 8}})),
    ),
    (
        "spec.kvTransfer.requireRDMA",
        "no RDMA",
        deployment(kvTransfer={"transport": "tcp", "requireRDMA": True}),
    ),
    (
        "spec.kvTransfer.requireRDMA",
        "no RDMA",
        deployment(kvTransfer={"transport": "shm", "requireRDMA": True}),
    ),
    ("metadata.name", "longer than 40", named("a" * 41)),
]
"""(path that is named, part of the message, document): each breaks one rule and nothing else."""

HOLDS: list[dict[str, Any]] = [
    deployment(),
    deployment(engine=None),
    named("a" * 40),
    deployment(pools={"mixed": {}}),
    deployment(pools={"prompt": {}, "mixed": {}}),
    deployment(pools={"token": {"replicas": 0}, "mixed": {}}),
    deployment(design="HHcap", pools=_pools({}, {"powerCap": {"percent": 40}})),
    deployment(design="HA", pools=_pools({"tensorParallel": 4}, {"gpu": {"count": 4}})),
    deployment(pools=_pools({"gpu": {"products": ["Odd-Card-9"], "count": 1}}, {"tensorParallel": 1})),
    deployment(kvTransfer={"transport": "nixl", "requireRDMA": True}),
    deployment(kvTransfer={"requireRDMA": True}),
    deployment(engine={"name": "vllm", "args": ["--enforce-eager", "--modelled"]}),
    deployment(slo={"ttft": {"p50": "2x"}, "tbt": {"p99": "200ms"}}),
]
"""Documents close to the rules that break none."""
