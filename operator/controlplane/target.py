"""One deployment to be rendered: the parsed object, who it is, and what the administrator decided."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.api import GROUP, KIND, VERSION, SplitwiseDeployment
from controlplane.api.deployment import parallel
from controlplane.api.pools import Pool
from controlplane.names import Component, Manifest, digest, labels, version_label
from controlplane.settings import OperatorSettings
from runtime.config import Role


@dataclass(frozen=True, slots=True)
class Target:
    """What builders are given. `sizes` are the machines wanted per role, from the spec or a scaler object;
    `monitors` says whether the cluster knows ServiceMonitors; `uid` is empty where there is no cluster."""

    deployment: SplitwiseDeployment
    settings: OperatorSettings = field(default_factory=OperatorSettings)
    uid: str = ""
    sizes: Mapping[Role, int] = field(default_factory=dict)
    monitors: bool = False
    pools: Mapping[Role, Pool] = field(init=False, repr=False, compare=False)
    """The pools with what the design sets, worked out once: builders ask for them at every turn."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pools", self.deployment.spec.effective_pools())

    @property
    def name(self) -> str:
        return self.deployment.metadata.name

    @property
    def namespace(self) -> str:
        return self.deployment.metadata.namespace

    def size(self, role: Role) -> int:
        """Machines wanted in a pool."""
        pool = self.pools.get(role)
        return self.sizes.get(role, pool.replicas if pool else 0)

    @property
    def machine_image(self) -> str:
        return self.deployment.spec.engine.image or self.settings.machine_image

    @property
    def revision(self) -> str:
        """Names what two machines must have in common for one to continue from the other's KV-cache."""
        spec = self.deployment.spec
        engine = spec.engine.model_dump(mode="json") | {"image": self.machine_image}
        model = spec.model.model_dump(mode="json")
        shards = sorted({parallel(pool) for pool in self.pools.values()})
        return digest([engine, model, shards], 8)

    def child(self, api_version: str, kind: str, name: str, component: Component | None = None) -> Manifest:
        """The head of a child: labelled and owned by the deployment, so that it goes with it."""
        metadata: Manifest = {
            "name": name,
            "namespace": self.namespace,
            "labels": labels(self.name, component) | version_label(),
        }
        if self.uid:
            metadata["ownerReferences"] = [
                {
                    "apiVersion": f"{GROUP}/{VERSION}",
                    "kind": KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ]
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
