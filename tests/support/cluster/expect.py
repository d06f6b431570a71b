"""What tests wait for, as predicates on objects."""

from collections.abc import Callable

from cluster.client import Object


def condition(kind: str, status: str = "True", reason: str = "") -> Callable[[Object], bool]:
    """The object's condition `kind` has this status (and this reason, if one is given)."""

    def holds(item: Object) -> bool:
        found = item.get("status", {}).get("conditions") or []  # a new CRD's are null
        return any(
            c["type"] == kind and c["status"] == status and reason in ("", c.get("reason")) for c in found
        )

    return holds


def ready_replicas(count: int) -> Callable[[Object], bool]:
    """A workload that has rolled out its latest spec to exactly `count` ready replicas."""

    def holds(item: Object) -> bool:
        status = item.get("status", {})
        counts = {status.get(key, 0) for key in ("replicas", "readyReplicas", "updatedReplicas")}
        seen = status.get("observedGeneration") == item["metadata"]["generation"]
        return seen and counts == {count}

    return holds


def waiting(reason: str) -> Callable[[Object], bool]:
    """A pod of which a container waits for this reason: "CrashLoopBackOff"."""

    def holds(pod: Object) -> bool:
        statuses = pod.get("status", {}).get("containerStatuses", [])
        return any(s["state"].get("waiting", {}).get("reason") == reason for s in statuses)

    return holds


def restarts(count: int) -> Callable[[Object], bool]:
    """A pod whose first container has been restarted at least `count` times."""

    def holds(pod: Object) -> bool:
        statuses = pod.get("status", {}).get("containerStatuses", [])
        return bool(statuses) and int(statuses[0]["restartCount"]) >= count

    return holds
