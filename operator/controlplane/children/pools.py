"""A pool of machines: one StatefulSet per template, one headless Service, budget and scaler object.

A changed template is a new StatefulSet beside the old one, so that a rollout can keep pairs of equal
revision together (`rollout.py`). What must not restart machines, such as a power cap, stays out of the
template.
"""

from dataclasses import dataclass

from controlplane import names
from controlplane.api.pools import Pool, PowerCap
from controlplane.children import config, placement, pods
from controlplane.children.model import Weights
from controlplane.merge import merged
from controlplane.names import Manifest
from controlplane.target import Target
from runtime.config import Role

FILE = "machine.json"
LOAD_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Workload:
    """A pool's current template: its hash, its StatefulSet without a size, its settings."""

    role: Role
    template: str
    stateful_set: Manifest
    config_map: Manifest

    @property
    def name(self) -> str:
        return str(self.stateful_set["metadata"]["name"])

    def sized(self, replicas: int) -> Manifest:
        """The StatefulSet with so many machines."""
        return self.stateful_set | {"spec": self.stateful_set["spec"] | {"replicas": replicas}}


def workload(target: Target, role: Role, weights: Weights) -> Workload:
    """The StatefulSet and the settings of a pool as the spec says now."""
    settings = config.machine(target, role, weights).model_dump(mode="json")
    template = names.digest([_pod(target, role, weights, config_name=""), settings])
    name = names.workload(target.name, role, template)
    labels = {names.TEMPLATE: template, names.REVISION: target.revision}
    pod = merged(_pod(target, role, weights, config_name=name), {"metadata": {"labels": labels}})
    head = target.child("apps/v1", "StatefulSet", name, role)
    head["metadata"]["labels"] |= labels
    if cap := target.pools[role].power_cap:
        head["metadata"]["annotations"] = {names.POWER_CAP: cap_text(cap)}
    settings_map = config.config_map(target, name, settings, file=FILE, component=role)
    settings_map["metadata"]["labels"] |= labels
    spec = {
        "serviceName": names.pool(target.name, role),
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": names.selector(target.name, role) | {names.TEMPLATE: template}},
        "template": pod,
    }
    return Workload(role, template, head | {"spec": spec}, settings_map | {"immutable": True})


def cap_text(cap: PowerCap) -> str:
    """A power cap as an annotation's value: percent=50 or watts=350."""
    return f"percent={cap.percent}" if cap.percent is not None else f"watts={cap.watts}"


def _pod(target: Target, role: Role, weights: Weights, *, config_name: str) -> Manifest:
    """The pod template with the user's over it; our labels are put back, since everything hangs on them."""
    pool = target.pools[role]
    whole: Manifest = {
        "metadata": {"labels": names.labels(target.name, role)},
        "spec": {
            "serviceAccountName": names.machine(target.name),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": pods.grace_seconds(target),
            "securityContext": pods.pod_security(),
            "affinity": placement.affinity(target, pool.gpu),
            "tolerations": placement.tolerations(pool),
            "imagePullSecrets": pods.pull_secrets(target),
            "initContainers": pods.fetching(target.machine_image, weights, tokenizer=False),
            "containers": [_container(target, pool, weights)],
            "volumes": [
                *pods.volumes(target, config_name, weights),
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }
    whole["spec"] = {key: value for key, value in whole["spec"].items() if value != []}
    result: Manifest = merged(merged(whole, pool.pod_template), {"metadata": whole["metadata"]})
    return result


def _container(target: Target, pool: Pool, weights: Weights) -> Manifest:
    ports = pods.ports(("link", config.LINK_PORT), ("metrics", config.OBSERVE_PORT))
    security = pods.security()
    if placement.wants_rdma(target):
        security = security | {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}
    container: Manifest = {
        "name": "machine",
        "image": target.machine_image,
        "command": ["python", "-P", "-m", "runtime.machine"],
        "args": [
            *("--config", f"{pods.CONFIG_FOLDER}/{FILE}"),
            *("--name", "$(POD_NAME)", "--data-host", "$(POD_IP)"),
        ],
        "env": pods.environment(),
        "ports": ports,
        "securityContext": security,
        "startupProbe": pods.probe("/healthz", "metrics", period=5, failures=LOAD_SECONDS // 5),
        "readinessProbe": pods.probe("/readyz", "metrics", period=2, failures=1),
        "livenessProbe": pods.probe("/healthz", "metrics", period=10, failures=6),
        "lifecycle": pods.leave(),
        "volumeMounts": [*pods.mounts(weights), {"name": "shm", "mountPath": "/dev/shm"}],
    }
    if found := placement.devices(target, pool):
        container["resources"] = {"requests": found, "limits": found}
    return container


def service(target: Target, role: Role) -> Manifest:
    """The headless Service of a pool: stable pod names, and the EndpointSlices that routers follow."""
    head = target.child("v1", "Service", names.pool(target.name, role), role)
    ports = (("link", config.LINK_PORT), ("metrics", config.OBSERVE_PORT))
    return head | {
        "spec": {
            "clusterIP": "None",
            "selector": names.selector(target.name, role),
            "ports": [{"name": name, "port": port, "targetPort": name} for name, port in ports],
        }
    }


def budget(target: Target, component: names.Component, replicas: int) -> Manifest | None:
    """A drain takes one pod at a time. None for a lone pod, whose node could then never be drained."""
    if replicas < 2 or not target.settings.disruption_budgets:
        return None
    name = f"{target.name}-{component}"
    head = target.child("policy/v1", "PodDisruptionBudget", name, component)
    return head | {
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.selector(target.name, component)},
        }
    }


def scaler(target: Target, role: Role) -> Manifest | None:
    """The scaler object of an externally scaled pool, without `replicas`: only the seed has it."""
    if target.pools[role].scaling.owner != "external":
        return None
    return target.child("splitwise.dev/v1alpha1", "SplitwisePool", names.pool(target.name, role), role)


def seeded(scaler: Manifest, replicas: int) -> Manifest:
    """A scaler object as it is first made."""
    return scaler | {"spec": {"replicas": replicas}}
