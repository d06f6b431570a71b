"""The machines of each pool and the routers, counted: wanted, there, ready, up to date, ailing."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane import names
from controlplane.children import Desired
from controlplane.observe import Observed, Pod
from controlplane.rollout import Machines
from controlplane.target import Target
from runtime.config import Role


@dataclass(frozen=True, slots=True)
class PoolCount:
    """One pool. `old` machines are of an earlier template; `pods` are all that are not about to go."""

    role: Role
    wanted: int
    replicas: int
    ready: int
    updated: int
    old: int
    settled: bool
    pods: Sequence[Pod]
    current_template: str

    @property
    def complete(self) -> bool:
        """Every wanted machine is up to date and ready, and no other is left."""
        return self.settled and self.old == 0 and self.updated == self.ready == self.replicas == self.wanted

    def unplaced(self) -> Pod | None:
        """A pod that finds no node."""
        return next((pod for pod in self.pods if pod.unplaced), None)

    def troubled(self) -> Pod | None:
        """A pod with a container that does not run, of the current template first."""
        pods = sorted(self.pods, key=lambda pod: pod.template != self.current_template)
        return next((pod for pod in pods if pod.trouble), None)


def machines(desired: Desired, observed: Observed) -> list[Machines]:
    """All StatefulSets as the rollout sees them, with those that do not exist yet."""
    current = {workload.name: workload for workload in desired.workloads}
    found = []
    for item in observed.of("StatefulSet"):
        labels, name = item["metadata"]["labels"], item["metadata"]["name"]
        pods = [pod for pod in observed.pods if pod.template == labels.get(names.TEMPLATE)]
        pods = [pod for pod in pods if pod.component == labels.get(names.POOL)]
        found.append(
            Machines(
                name,
                labels[names.POOL],
                labels.get(names.REVISION, ""),
                replicas=int(item["spec"].get("replicas", 1)),
                ready=frozenset(pod.ordinal for pod in pods if pod.ready),
                current=name in current,
                short=any(pod.unplaced for pod in pods),
                broken=not any(pod.ready for pod in pods)
                and any(pod.trouble or pod.unplaced for pod in pods),
            )
        )
    there = {each.name for each in found}
    for name, workload in current.items():
        if name not in there:
            revision = workload.config_map["metadata"]["labels"][names.REVISION]
            found.append(Machines(name, workload.role, revision, replicas=0, current=True))
    return found


def _broken(pods: Sequence[Pod]) -> bool:
    return not any(pod.ready for pod in pods) and any(pod.trouble or pod.unplaced for pod in pods)


def count(target: Target, desired: Desired, observed: Observed) -> list[PoolCount]:
    """The pools of the spec, in the order of the roles."""
    sets = machines(desired, observed)
    templates = {workload.role: workload.template for workload in desired.workloads}
    live = {item["metadata"]["name"]: item for item in observed.of("StatefulSet")}
    counts = []
    for role in names.ROLES:
        if role not in target.pools:
            continue
        pods = [pod for pod in observed.pods if pod.component == role and not pod.leaving]
        template = templates.get(role, "")
        mine = [each for each in sets if each.role == role]
        current = next((each for each in mine if each.current), None)
        counts.append(
            PoolCount(
                role=role,
                wanted=target.size(role),
                replicas=len(pods),
                ready=sum(pod.ready for pod in pods),
                updated=sum(pod.ready for pod in pods if pod.template == template),
                old=sum(pod.template != template for pod in pods),
                settled=current is not None and _settled(live.get(current.name), target.size(role)),
                pods=pods,
                current_template=template,
            )
        )
    return counts


def _settled(workload: names.Manifest | None, wanted: int) -> bool:
    """The controller of a workload has seen what we want, and that is the wanted size."""
    if workload is None:
        return False
    seen = workload.get("status", {}).get("observedGeneration", 0) == workload["metadata"]["generation"]
    return bool(seen and workload["spec"].get("replicas") == wanted)


@dataclass(frozen=True, slots=True)
class RouterCount:
    """The routers. `updated` are ready ones that run the current settings."""

    wanted: int
    ready: int
    complete: bool
    trouble: str = ""


def routers(target: Target, observed: Observed) -> RouterCount:
    """The routers as their Deployment counts them."""
    wanted = target.deployment.spec.router.replicas
    live = next(iter(observed.of("Deployment")), None)
    pods = [pod for pod in observed.pods if pod.component == "router" and not pod.leaving]
    trouble = next(
        (f"{pod.name}: {pod.trouble or pod.unplaced}" for pod in pods if pod.trouble or pod.unplaced), ""
    )
    if live is None:
        return RouterCount(wanted, 0, complete=False, trouble=trouble)
    status = live.get("status", {})
    counts = {status.get(key, 0) for key in ("replicas", "readyReplicas", "updatedReplicas")}
    seen = status.get("observedGeneration", 0) == live["metadata"]["generation"]
    ready = status.get("readyReplicas", 0)
    return RouterCount(wanted, ready, complete=seen and counts == {wanted}, trouble=trouble)
