"""Manifests of small workloads, for tests that are about something else."""

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.client import Object

IMAGE = "test.invalid/nothing:v1"


def container(command: Sequence[str] = ("sleep", "3600"), *, gpus: int = 0, **more: Any) -> Object:
    """One container; `more` is what the API calls it: `readinessProbe={...}`."""
    plain: Object = {"name": "main", "image": IMAGE, "command": list(command)}
    if gpus:
        plain["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return plain | more


def pod_spec(*containers: Object, **more: Any) -> Object:
    """A pod's spec that ends quickly when asked to."""
    spec = {"containers": list(containers or [container()]), "terminationGracePeriodSeconds": 5}
    return spec | more


def pod(name: str, spec: Object | None = None, *, annotations: Mapping[str, str] | None = None) -> Object:
    metadata = {"name": name, "labels": {"app": name}, "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec or pod_spec()}


def workload(
    kind: str,
    name: str,
    replicas: int,
    spec: Object | None = None,
    *,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """A Deployment or a StatefulSet; its pods carry the label `app` and `annotations`."""
    labels = {"app": name}
    metadata = {"labels": labels, "annotations": dict(annotations or {})}
    whole: Object = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": metadata, "spec": spec or pod_spec()},
    }
    if kind == "StatefulSet":
        whole["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": whole}


def service(name: str, port: int, **more: Any) -> Object:
    """A Service of the pods labelled `app: NAME`; `clusterIP="None"` makes it headless."""
    spec = {"selector": {"app": name}, "ports": [{"port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec | more}
