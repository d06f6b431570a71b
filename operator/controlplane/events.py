"""Events as values: said once, when something changes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from controlplane.api.status import Condition
from controlplane.diff import Change, Delete, Resize
from controlplane.names import MANAGER, Manifest, digest

_TOLD = ("Ready", "Available", "Degraded", "PowerCapApplied", "KVTransportReady", "ScalingReady")
_GOOD_WHEN_FALSE = ("Degraded",)


@dataclass(frozen=True, slots=True)
class Event:
    """One line in `kubectl describe`."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str

    def manifest(self, about: Manifest, now: datetime) -> Manifest:
        """As the API server takes it."""
        time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = about["metadata"]
        name = (
            f"{metadata['name']}.{digest([self.reason, self.message, metadata['uid'], now.isoformat()], 16)}"
        )
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": self.kind,
            "reason": self.reason,
            "message": self.message[:1000],
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
        }


def transitions(before: Iterable[Condition], after: Iterable[Condition]) -> Iterator[Event]:
    """An event for each condition that flipped, or that is new and bad."""
    last = {condition.type: condition.status for condition in before}
    for condition in after:
        if condition.type not in _TOLD or last.get(condition.type) == condition.status:
            continue
        good = condition.status == ("False" if condition.type in _GOOD_WHEN_FALSE else "True")
        if not good and condition.type in ("Ready", "Available") and condition.type not in last:
            continue  # a new object is not ready: nobody needs to be told
        if good and condition.type not in last and condition.type in _GOOD_WHEN_FALSE:
            continue
        text = f"{condition.type} is {condition.status}: {condition.message}"
        yield Event("Normal" if good else "Warning", condition.reason, text)


def steps(changes: Iterable[Change]) -> Iterator[Event]:
    """An event for each step of a rollout that takes machines away."""
    for change in changes:
        if isinstance(change, Resize):
            yield Event("Normal", "RolloutStep", f"{change.ref.name}: {change.why}")
        elif isinstance(change, Delete) and change.ref.kind == "StatefulSet":
            yield Event("Normal", "RevisionRemoved", f"{change.ref.name}: {change.why}")
