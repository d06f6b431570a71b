"""The pretend kubelet: one program that is every pretend node of a cluster.

It adopts each Node labelled `pretend.splitwise.dev/node`, keeps its heartbeat, and moves the pods
that are bound to it as their annotations say (`steering.py`). Tests speak to it only through the
API, so it may as well be a real kubelet. Run it with `python -m cluster.kubelet KUBECONFIG FOLDER NUMBER`.
"""

import asyncio
import contextlib
import functools
import logging
import pathlib
import sys

import aiohttp

from cluster import network, pretendnode
from cluster.addresses import Addresses
from cluster.client import Client, Object
from cluster.follow import follow
from cluster.podworker import Place, PodWorker, confirm_deletion, persist
from cluster.pretendnode import PretendNode
from cluster.steering import NODE_LABEL, NodeState

HEARTBEAT_SECONDS = 2.0
log = logging.getLogger(__name__)


class Kubelet:
    """All pretend nodes, and a worker for each pod on them."""

    def __init__(
        self, client: Client, http: aiohttp.ClientSession, folder: pathlib.Path, number: int
    ) -> None:
        self._client = client
        self._http = http
        self._folder = folder
        self._addresses = Addresses(number)
        self._nodes: dict[str, PretendNode] = {}
        self._pods: dict[str, Object] = {}  # by uid, whichever node they are on
        self._workers: dict[str, tuple[PodWorker, asyncio.Task[None]]] = {}
        can_bind = network.can_bind(str(network.PODS[-2]))
        self._why_no_process = None if can_bind else "this test run has no private network"

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_nodes())
            group.create_task(self._follow_pods())
            group.create_task(self._beat())

    async def _follow_nodes(self) -> None:
        async for change in follow(self._client, "nodes", selector=f"{NODE_LABEL}=true"):
            name = change.object["metadata"]["name"]
            if change.gone:
                await self._drop_node(name)
                continue
            node = self._nodes.get(name) or self._adopt(change.object)
            node.update(change.object)
            await self._enter(node)

    async def _follow_pods(self) -> None:
        changes = follow(self._client, "pods", namespace="*", fields="spec.nodeName!=")
        async for change in changes:
            uid = change.object["metadata"]["uid"]
            self._pods[uid] = change.object
            if change.gone:
                del self._pods[uid]
                self._end(uid)
            elif node := self._nodes.get(change.object["spec"]["nodeName"]):
                self._settle(change.object, node)

    async def _beat(self) -> None:
        """Renews every node's lease. A node that is away has no heartbeat."""
        while True:
            for node in list(self._nodes.values()):
                if node.state is NodeState.WELL:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(HEARTBEAT_SECONDS):
                            await persist(functools.partial(node.renew, self._client))
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _adopt(self, item: Object) -> PretendNode:
        node = PretendNode(item, self._addresses.take(pretendnode.address(item)))
        self._nodes[node.name] = node
        return node

    async def _enter(self, node: PretendNode) -> None:
        """Makes a node's latest state come true."""
        if node.changed():
            if node.state is NodeState.WELL:
                await persist(functools.partial(node.register, self._client))
                node.reachable.set()
            else:
                await self._lose(node)
        for pod in self._pods_of(node):
            self._settle(pod, node)

    async def _lose(self, node: PretendNode) -> None:
        """A node goes away; only a silent one leaves it to the control plane to find out."""
        node.reachable.clear()
        if node.state is NodeState.LOST:
            for pod in self._pods_of(node):
                self._end(pod["metadata"]["uid"])
        if node.state is not NodeState.SILENT:
            await persist(functools.partial(node.report_loss, self._client))
            for pod in self._pods_of(node):
                await persist(functools.partial(pretendnode.report_pod_lost, self._client, pod))

    def _pods_of(self, node: PretendNode) -> list[Object]:
        return [pod for pod in self._pods.values() if pod["spec"]["nodeName"] == node.name]

    def _settle(self, pod: Object, node: PretendNode) -> None:
        """Starts a pod's worker or tells it the news, unless its node is away."""
        if not node.reachable.is_set():
            return
        uid = pod["metadata"]["uid"]
        if uid in self._workers:
            self._workers[uid][0].update(pod)
        else:
            worker = PodWorker(pod, self._pod_address(pod, node), self._place(node))
            self._workers[uid] = worker, asyncio.create_task(self._work(worker))

    async def _work(self, worker: PodWorker) -> None:
        metadata = worker.pod["metadata"]
        try:
            await worker.run()
        except Exception:
            log.exception("pod %s/%s", metadata["namespace"], metadata["name"])

    def _end(self, uid: str) -> None:
        """Ends a worker at once, and the pod's processes with it."""
        if uid in self._workers:
            worker, task = self._workers.pop(uid)
            task.cancel()
            if not worker.pod["spec"].get("hostNetwork"):
                self._addresses.give_back(worker.ip)

    async def _drop_node(self, name: str) -> None:
        """A deleted node's pods go at once; upstream's garbage collector takes a minute."""
        if node := self._nodes.pop(name, None):
            for pod in self._pods_of(node):
                self._end(pod["metadata"]["uid"])
                await persist(functools.partial(confirm_deletion, self._client, pod))
            self._addresses.give_back(node.ip)

    def _pod_address(self, pod: Object, node: PretendNode) -> str:
        if pod["spec"].get("hostNetwork"):
            return node.ip
        return self._addresses.take(pod.get("status", {}).get("podIP", ""))

    def _place(self, node: PretendNode) -> Place:
        return Place(
            client=self._client,
            http=self._http,
            folder=self._folder,
            host_ip=node.ip,
            annotations=lambda: node.annotations,
            reachable=node.reachable,
            why_no_process=self._why_no_process,
        )


async def main(kubeconfig: pathlib.Path, folder: pathlib.Path, number: int) -> None:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with Client(kubeconfig) as client, aiohttp.ClientSession(connector=connector) as http:
        await Kubelet(client, http, folder, number).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])))
