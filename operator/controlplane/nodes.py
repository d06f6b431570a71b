"""Labels on nodes: which ones a deployment's machines occupy, and which spell their GPU oddly.

The labels start with llama.inference.splitwise.dev/ for deployment llama of namespace inference:
`prompt`, `token` and `mixed` mark nodes where such machines are, `gpu` names the family of a node whose
product label pods cannot ask for by name. They go when the machines go.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from controlplane import gpus, names
from controlplane.api import GROUP, Gpu
from controlplane.children.placement import FAMILY_LABEL
from controlplane.diff import LabelNode
from controlplane.gpus import Node
from controlplane.observe import Pod
from controlplane.target import Target

_OURS = "." + GROUP + "/"


def fits(node: Node, gpu: Gpu) -> bool:
    """Whether a pool may use a node's GPUs; whether they are free is the scheduler's business."""
    return node.gpus >= gpu.count and gpus.matches(node, gpu.family, gpu.products)


def wanted(target: Target, nodes: Sequence[Node], pods: Sequence[Pod]) -> dict[str, dict[str, str]]:
    """The labels each node shall have of this deployment."""
    prefix = names.node_prefix(target.namespace, target.name)
    labels: dict[str, dict[str, str]] = {}
    for pod in pods:
        if pod.node and pod.component in names.ROLES:
            labels.setdefault(pod.node, {})[prefix + pod.component] = "true"
    by_family = [pool.gpu for pool in target.pools.values() if pool.gpu and not pool.gpu.products]
    for node in nodes:
        if node.product and gpus.unlisted(node.product) and any(fits(node, gpu) for gpu in by_family):
            labels.setdefault(node.name, {})[prefix + FAMILY_LABEL] = gpus.family(node.product)
    return labels


def changes(
    prefix: str, labels: Mapping[str, Mapping[str, str]], nodes: Iterable[Node]
) -> Iterator[LabelNode]:
    """What to do so that nodes have these labels under the prefix and no others."""
    for node in nodes:
        have = {key: value for key, value in node.labels.items() if key.startswith(prefix)}
        want = labels.get(node.name, {})
        if have == want:
            continue
        patch: dict[str, str | None] = {key: None for key in have if key not in want}
        patch |= {key: value for key, value in want.items() if have.get(key) != value}
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
