"""One pretend node: its registration, its heartbeat, its loss."""

import asyncio
from datetime import UTC, datetime

from cluster.client import STRATEGIC, Client, Object
from cluster.podstatus import timestamp
from cluster.steering import NodeState, node_state

PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
LEASE_SECONDS = 40


def address(node: Object) -> str:
    """The address that a node reported before, if any."""
    known = node.get("status", {}).get("addresses", [])
    return next((str(a["address"]) for a in known if a["type"] == "InternalIP"), "")


class PretendNode:
    """What the kubelet knows of one node. While `reachable` is not set, nothing is reported."""

    def __init__(self, node: Object, ip: str) -> None:
        self.name: str = node["metadata"]["name"]
        self.ip = ip
        self.annotations: dict[str, str] = {}
        self.state = NodeState.WELL
        self.reachable = asyncio.Event()
        self._uid: str = node["metadata"]["uid"]
        self._entered: NodeState | None = None
        self._given_up = False

    def update(self, node: Object) -> None:
        self.annotations = node["metadata"].get("annotations", {})
        self.state = node_state(self.annotations)
        known = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions") or []}
        self._given_up = known.get("Ready") == "Unknown"

    def changed(self) -> bool:
        """True once for each new state, and whenever a node that is well has been given up for lost:
        an API server that was away for long takes all nodes for silent."""
        before, self._entered = self._entered, self.state
        return before is not self.state or (self._given_up and self.state is NodeState.WELL)

    async def register(self, client: Client) -> None:
        """Reports the node as ready, with its address."""
        conditions = [condition(kind, "False", "KubeletHasEnough") for kind in PRESSURES]
        status = {
            "addresses": [
                {"type": "InternalIP", "address": self.ip},
                {"type": "Hostname", "address": self.name},
            ],
            "conditions": [*conditions, condition("Ready", "True", "KubeletReady")],
            "nodeInfo": {"kubeletVersion": "v1.36.3", "operatingSystem": "linux"},
        }
        await self.renew(client)
        await self._patch(client, status)

    async def report_loss(self, client: Client) -> None:
        """Says of itself what the control plane would find out after its grace period."""
        kinds = (*PRESSURES, "Ready")
        unknown = [condition(kind, "Unknown", "NodeStatusUnknown") for kind in kinds]
        await self._patch(client, {"conditions": unknown})

    async def renew(self, client: Client) -> None:
        """One heartbeat."""
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self._uid}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.name,
                "namespace": "kube-node-lease",
                "ownerReferences": [owner],
            },
            "spec": {
                "holderIdentity": self.name,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        await client.apply(lease, manager="pretend-kubelet")

    async def _patch(self, client: Client, status: Object) -> None:
        body = {"metadata": {"uid": self._uid}, "status": status}
        await client.patch("nodes", self.name, body, subresource="status", media=STRATEGIC)


def condition(kind: str, status: str, reason: str) -> Object:
    now = timestamp()
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"type": kind, "status": status, "reason": reason, "message": reason, **times}


async def report_pod_lost(client: Client, pod: Object) -> None:
    """Takes a pod out of service, as the node controller does when it loses the pod's node."""
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp()}
    await client.patch(
        "pods",
        pod["metadata"]["name"],
        {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"conditions": [ready]}},
        subresource="status",
        media=STRATEGIC,
        namespace=pod["metadata"]["namespace"],
    )
