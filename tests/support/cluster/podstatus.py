"""The status of a pod, computed from the states of its containers as a kubelet would."""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime

from cluster.client import Object

CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


def timestamp(now: datetime | None = None) -> str:
    """A Kubernetes time: 2026-01-31T12:00:00Z."""
    return (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclasses.dataclass(slots=True)
class ContainerState:
    """What is known of one container; `state` and `last_state` are as the API wants them."""

    name: str
    image: str
    init: bool = False
    sidecar: bool = False
    state: Object = dataclasses.field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Object = dataclasses.field(default_factory=dict)
    restarts: int = 0
    started: bool = False
    ready: bool = False

    @property
    def exit_code(self) -> int | None:
        """The exit code, if it has ended for good."""
        ended: Object | None = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def has_run(self) -> bool:
        return "running" in self.state or self.restarts > 0 or bool(self.last_state)

    def status(self) -> Object:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "state": self.state,
            "lastState": self.last_state,
            "restartCount": self.restarts,
            "started": self.started,
            "ready": self.ready or (self.init and not self.sidecar and self.exit_code == 0),
        }


def phase(containers: Sequence[ContainerState]) -> str:
    """Pending, Running, Succeeded or Failed. The last two only if nothing will run again."""
    main = [container for container in containers if not container.init]
    codes = [container.exit_code for container in main]
    failed_init = any(c.init and c.exit_code not in (None, 0) for c in containers)
    if failed_init:
        return "Failed"
    if None not in codes:
        return "Failed" if any(codes) else "Succeeded"
    started = any(container.has_run or container.exit_code is not None for container in main)
    return "Running" if started else "Pending"


def _initialised(containers: Sequence[ContainerState]) -> bool:
    init = [container for container in containers if container.init]
    return all(c.started if c.sidecar else c.exit_code == 0 for c in init)


def _gates_open(pod: Object) -> bool:
    """True if every readiness gate that others must open is open."""
    gates = {gate["conditionType"] for gate in pod["spec"].get("readinessGates", [])}
    present = pod.get("status", {}).get("conditions", [])
    return gates <= {c["type"] for c in present if c["status"] == "True"}


def conditions(pod: Object, containers: Sequence[ContainerState], now: str) -> list[Object]:
    """The kubelet's four conditions; a transition time moves only when its condition flips."""
    finished = phase(containers) in ("Succeeded", "Failed")
    serving = [c for c in containers if not c.init or c.sidecar]
    containers_ready = not finished and all(container.ready for container in serving)
    holds = {
        "PodReadyToStartContainers": not finished,
        "Initialized": _initialised(containers),
        "ContainersReady": containers_ready,
        "Ready": containers_ready and _gates_open(pod),
    }
    before = {c["type"]: c for c in pod.get("status", {}).get("conditions", [])}
    unready = [c.name for c in serving if not c.ready]
    return [_condition(kind, holds[kind], before.get(kind), unready, now) for kind in CONDITIONS]


def _condition(kind: str, holds: bool, before: Object | None, unready: list[str], now: str) -> Object:
    status = "True" if holds else "False"
    same = before is not None and before["status"] == status
    condition: Object = {
        "type": kind,
        "status": status,
        "lastTransitionTime": before["lastTransitionTime"] if before and same else now,
        "reason": None,
        "message": None,
    }
    if not holds and kind in ("Ready", "ContainersReady"):
        condition["reason"] = "ContainersNotReady"
        condition["message"] = f"containers with unready status: [{' '.join(unready)}]"
    return condition


def pod_status(
    pod: Object, containers: Sequence[ContainerState], *, ip: str, host_ip: str, now: str
) -> Object:
    """The whole status, to be sent as a strategic merge patch."""
    return {
        "phase": phase(containers),
        "conditions": conditions(pod, containers, now),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": pod.get("status", {}).get("startTime") or now,
        "initContainerStatuses": [c.status() for c in containers if c.init],
        "containerStatuses": [c.status() for c in containers if not c.init],
    }
