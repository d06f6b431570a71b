"""All children of a deployment in the order in which they are applied."""

from dataclasses import dataclass
from typing import Any

from controlplane import names
from controlplane.children import access, config, model, monitors, pools, router
from controlplane.names import Manifest
from controlplane.target import Target
from runtime.config import Role


@dataclass(frozen=True, slots=True)
class Desired:
    """`fixed` are children as they shall be; `workloads` get their sizes from the rollout; `scalers` are
    seeded once and never resized. `held` says why no machine may be made or changed, if that is so."""

    fixed: tuple[Manifest, ...]
    workloads: tuple[pools.Workload, ...]
    scalers: tuple[Manifest, ...]
    routers: tuple[Manifest, ...]
    held: str | None = None

    def manifests(self, sizes: dict[Role, int]) -> list[Manifest]:
        """Everything, as one would apply it to an empty cluster."""
        sized = [] if self.held else [each.sized(sizes[each.role]) for each in self.workloads]
        seeded = [pools.seeded(each, sizes[_role(each)]) for each in self.scalers]
        return [*self.fixed, *seeded, *sized, *self.routers]


def desired(target: Target) -> Desired:
    """Every child but the link Secret. Raises InvalidDeployment for what pods cannot have."""
    weights = model.weights(target.deployment)
    held = config.lacking_transport(target)
    workloads = () if held else tuple(pools.workload(target, role, weights) for role in target.pools)
    settings = router.settings_map(target, weights)
    replicas = target.deployment.spec.router.replicas
    fixed: list[Manifest | None] = [
        *access.accounts(target),
        settings,
        *(each.config_map for each in workloads),
        *(pools.service(target, role) for role in target.pools),
        router.service(target),
        *access.policies(target),
        *(pools.budget(target, role, target.size(role)) for role in target.pools),
        pools.budget(target, "router", replicas),
        monitors.service_monitor(target),
    ]
    scalers = (pools.scaler(target, role) for role in target.pools)
    return Desired(
        fixed=tuple(each for each in fixed if each is not None),
        workloads=workloads,
        scalers=tuple(each for each in scalers if each is not None),
        routers=(router.deployment(target, weights, settings),),
        held=held,
    )


def _role(scaler: dict[str, Any]) -> Role:
    role: Role = scaler["metadata"]["labels"][names.POOL]
    return role
