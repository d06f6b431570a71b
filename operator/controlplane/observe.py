"""What a cluster shows of one deployment, gathered once per pass and frozen."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from controlplane import names
from controlplane.api import GROUP
from controlplane.errors import NotFound
from controlplane.gpus import PRODUCT, RESOURCE, Node
from controlplane.kinds import KINDS
from controlplane.kube import Kube
from controlplane.names import Manifest
from controlplane.trust import Trust, trust_of


class Ref(NamedTuple):
    """An object of the deployment's namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Pod:
    """What matters of a pod. `trouble`: why a container does not run. `unplaced`: the scheduler's word."""

    name: str
    component: str
    template: str
    node: str = ""
    address: str = ""
    ready: bool = False
    leaving: bool = False
    trouble: str = ""
    unplaced: str = ""

    @property
    def ordinal(self) -> int:
        tail = self.name.rsplit("-", 1)[-1]
        return int(tail) if tail.isdigit() else 0


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """A HorizontalPodAutoscaler: the scaler object it points at, and what it complains of."""

    name: str
    scaler: str
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """`children` are labelled as ours and owned by this very object. `trust`: None without a link Secret."""

    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    pods: Sequence[Pod] = ()
    autoscalers: Sequence[Autoscaler] = ()
    nodes: Sequence[Node] = ()
    trust: Trust | None = None

    def of(self, kind: str) -> list[Manifest]:
        """The children of one kind, by name."""
        return [child for ref, child in sorted(self.children.items()) if ref.kind == kind]


async def gather(
    kube: Kube, document: Manifest, *, nodes: Sequence[Node], monitors: bool, external: bool
) -> Observed:
    """Look at everything that belongs to a deployment. Raises ApiError."""
    namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
    kinds = [kind.name for kind in KINDS.values() if kind.child]
    kinds = [kind for kind in kinds if monitors or kind != "ServiceMonitor"]
    chosen = names.selector(name)
    (*children, pods), autoscalers, trust = await asyncio.gather(
        asyncio.gather(*(kube.list(kind, namespace, chosen) for kind in [*kinds, "Pod"])),
        kube.list("HorizontalPodAutoscaler", namespace) if external else _nothing(),
        _trust(kube, namespace, names.secret(name)),
    )
    uid = document["metadata"]["uid"]
    return Observed(
        children={
            Ref(child["kind"], child["metadata"]["name"]): child
            for listed in children
            for child in listed
            if _owner(child) == uid
        },
        pods=tuple(sorted((pod_of(pod) for pod in pods), key=lambda pod: pod.name)),
        autoscalers=tuple(autoscaler_of(each) for each in autoscalers),
        nodes=nodes,
        trust=trust,
    )


async def _nothing() -> list[Manifest]:
    return []


async def _trust(kube: Kube, namespace: str, name: str) -> Trust | None:
    try:
        return trust_of(await kube.get("Secret", namespace, name, metadata_only=True))
    except NotFound:
        return None


def _owner(child: Manifest) -> str:
    owners = child["metadata"].get("ownerReferences", [])
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def pod_of(pod: Manifest) -> Pod:
    """What matters of a pod as the API server has it."""
    metadata, status = pod["metadata"], pod.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    labels = metadata.get("labels", {})
    leaving = "deletionTimestamp" in metadata
    return Pod(
        name=metadata["name"],
        component=labels.get(names.POOL, ""),
        template=labels.get(names.TEMPLATE, ""),
        node=pod.get("spec", {}).get("nodeName", ""),
        address=status.get("podIP", ""),
        ready=not leaving and conditions.get("Ready", {}).get("status") == "True",
        leaving=leaving,
        trouble=_trouble(status),
        unplaced=_unplaced(conditions.get("PodScheduled", {})),
    )


_PATIENT = {"ContainerCreating", "PodInitializing", ""}


def _trouble(status: Mapping[str, Any]) -> str:
    """Why a container does not run, such as "CrashLoopBackOff: exit code 1"; empty while it merely starts."""
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason", "") in _PATIENT:
            continue
        ended = container.get("lastState", {}).get("terminated") or {}
        code = f": exit code {ended['exitCode']}" if "exitCode" in ended else ""
        return f"{waiting['reason']}{code}"
    return ""


def _unplaced(scheduled: Mapping[str, Any]) -> str:
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return str(scheduled.get("message") or "no node fits")
    return ""


def autoscaler_of(item: Manifest) -> Autoscaler:
    """An HPA, and the message of its first condition that is not as it should be."""
    target = item["spec"]["scaleTargetRef"]
    complaint = ""
    for condition in item.get("status", {}).get("conditions", []):
        if condition["type"] in ("AbleToScale", "ScalingActive") and condition["status"] == "False":
            complaint = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            break
    scaler = target["name"] if target.get("kind") == "SplitwisePool" else ""
    return Autoscaler(item["metadata"]["name"], scaler, complaint)


def node_of(item: Manifest) -> Node:
    """What matters of a node as the API server has it; a heartbeat changes nothing of it."""
    labels = item["metadata"].get("labels", {})
    allocatable = item.get("status", {}).get("allocatable", {})
    return Node(
        name=item["metadata"]["name"],
        labels={key: value for key, value in labels.items() if key == PRODUCT or f".{GROUP}/" in key},
        gpus=int(allocatable.get(RESOURCE, 0)),
    )
