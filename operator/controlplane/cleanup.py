"""Before the operator is uninstalled: no node keeps a label of ours."""

from controlplane import nodes
from controlplane.errors import NotFound
from controlplane.kube import ApiServer
from controlplane.observe import node_of
from controlplane.reconcile import World, leave_nodes
from runtime.kubernetes import Access


async def cleanup(access: Access) -> int:
    """Take every deployment's labels off all nodes. Raises ApiError."""
    async with ApiServer(access) as kube:
        found = [node_of(item) for item in await kube.list("Node", None)]
        world = World(kube, nodes=lambda: found)
        for key in sorted(nodes.owners(found)):
            await leave_nodes(key, world)
        try:
            lease = await kube.get("Lease", access.namespace, "splitwise-operator")
            await kube.delete("Lease", access.namespace, "splitwise-operator", lease["metadata"]["uid"])
        except NotFound:
            pass
    return 0
