"""Labels on nodes: which ones a deployment's machines occupy, and which spell their GPU oddly.

The labels start with llama.inference.splitwise.dev/ for deployment llama of namespace inference:
`prompt`, `token` and `mixed` mark nodes where such machines are, `gpu` names the family of a node whose
product label pods cannot ask for by name. They go when the machines go.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from controlplane import gpus, names
from controlplane.api import GROUP
from controlplane.children.placement import FAMILY_LABEL
from controlplane.diff import LabelNode
from controlplane.gpus import Node
from controlplane.observe import Pod
from controlplane.target import Target
from runtime.config import Role

_OURS = "." + GROUP + "/"


def matching(target: Target, nodes: Iterable[Node], role: Role) -> list[Node]:
    """Nodes whose GPUs a pool may use, by name; whether they are free is the scheduler's business."""
    gpu = target.pools[role].gpu
    if gpu is None:
        return []
    fitting = (node for node in nodes if gpus.matches(node, gpu.family, gpu.products))
    return sorted((node for node in fitting if node.gpus >= gpu.count), key=lambda node: node.name)


def wanted(target: Target, nodes: Sequence[Node], pods: Sequence[Pod]) -> dict[str, dict[str, str]]:
    """The labels each node shall have of this deployment."""
    prefix = names.node_prefix(target.namespace, target.name)
    labels: dict[str, dict[str, str]] = {}
    for pod in pods:
        if pod.node and pod.component in names.ROLES:
            labels.setdefault(pod.node, {})[prefix + pod.component] = "true"
    for role, pool in target.pools.items():
        if pool.gpu is None or pool.gpu.products:
            continue
        for node in matching(target, nodes, role):
            if gpus.unlisted(node.product):
                labels.setdefault(node.name, {})[prefix + FAMILY_LABEL] = gpus.family(node.product)
    return labels


def changes(
    prefix: str, labels: Mapping[str, Mapping[str, str]], nodes: Iterable[Node]
) -> Iterator[LabelNode]:
    """What to do so that nodes have these labels under the prefix and no others."""
    for node in nodes:
        have = {key: value for key, value in node.labels.items() if key.startswith(prefix)}
        want = labels.get(node.name, {})
        patch: dict[str, str | None] = {key: None for key in have if key not in want}
        patch |= {key: value for key, value in want.items() if have.get(key) != value}
        if patch:
            yield LabelNode(node.name, patch, _why(patch))


def _why(patch: Mapping[str, str | None]) -> str:
    signs = {key.rsplit("/", 1)[1]: "-" if value is None else "+" for key, value in sorted(patch.items())}
    return "machines came or went: " + " ".join(f"{sign}{key}" for key, sign in signs.items())


def owners(nodes: Iterable[Node]) -> set[tuple[str, str]]:
    """The deployments, as (namespace, name), that have labels on these nodes."""
    found = set()
    for node in nodes:
        for key in node.labels:
            head = key.split(_OURS)[0]
            if _OURS in key and head.count(".") == 1:
                name, namespace = head.split(".")
                found.add((namespace, name))
    return found
