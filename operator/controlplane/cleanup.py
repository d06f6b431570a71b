"""What the chart's hooks do: bring the CRDs up to date, and leave nothing behind."""

from controlplane import nodes
from controlplane.errors import NotFound
from controlplane.generate import crd
from controlplane.kube import ApiServer
from controlplane.observe import node_of
from controlplane.reconcile import World, leave_nodes
from runtime.kubernetes import Access

CRD = "CustomResourceDefinition"


async def apply_crds(access: Access) -> int:
    """Apply both CRDs; Helm itself only ever creates them. Raises ApiError."""
    async with ApiServer(access) as kube:
        for definition in (crd.deployments(), crd.pools()):
            await kube.apply(definition)
    return 0


async def cleanup(access: Access, *, crds: bool) -> int:
    """Take every deployment's labels off all nodes; with `crds`, remove the CRDs too, and with them every
    deployment. Raises ApiError."""
    async with ApiServer(access) as kube:
        if crds:
            for definition in (crd.deployments(), crd.pools()):
                await _delete(kube, definition["metadata"]["name"])
        found = [node_of(item) for item in await kube.list("Node", None)]
        world = World(kube, nodes=lambda: found)
        for key in sorted(nodes.owners(found)):
            await leave_nodes(key, world)
    return 0


async def _delete(kube: ApiServer, name: str) -> None:
    try:
        found = await kube.get(CRD, "", name)
    except NotFound:
        return
    await kube.delete(CRD, "", name, found["metadata"]["uid"])
