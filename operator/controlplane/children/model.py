"""Where a model's weights are inside a pod, and the volumes that bring them there."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath

from controlplane.api import InvalidDeployment, SplitwiseDeployment
from controlplane.api.model import Hub, Source
from controlplane.names import Manifest

MODELS = PurePosixPath("/models")
CACHE = "/var/cache/splitwise"


@dataclass(frozen=True, slots=True)
class Weights:
    """`path` for the settings file, revision, volumes and mounts; `hub` has to be fetched to `path` first."""

    path: str
    revision: str = ""
    volumes: list[Manifest] = field(default_factory=list)
    mounts: list[Manifest] = field(default_factory=list)
    hub: Hub | None = None


def weights(deployment: SplitwiseDeployment) -> Weights:
    """The weights of a deployment. Raises InvalidDeployment for a source that no pod can have."""
    source = deployment.spec.model.effective_source
    if source.hub:
        return Weights(f"{CACHE}/model", source.hub.revision, hub=source.hub)
    if source.claim:
        volume = {"persistentVolumeClaim": {"claimName": source.claim.name, "readOnly": True}}
        return _mounted(volume, source.claim.path)
    if source.image:
        image = {"reference": source.image.reference, "pullPolicy": source.image.pull_policy}
        return _mounted({"image": image}, source.image.path)
    return _on_the_node(source, deployment.metadata.name)


def _mounted(volume: Manifest, path: str) -> Weights:
    mount = {"name": "model", "mountPath": str(MODELS), "readOnly": True}
    return Weights(str(MODELS / path.lstrip("/")), volumes=[{"name": "model"} | volume], mounts=[mount])


def _on_the_node(source: Source, name: str) -> Weights:
    """A host path, mounted where it is on the node."""
    if source.path is None:
        advice = "only local processes read a package; write hub, claim, image or path"
        raise InvalidDeployment([("spec.model.source.package", source.package or "", advice)], name)
    if not PurePosixPath(source.path).is_absolute():
        advice = "pods have no folder to start from; write an absolute path"
        raise InvalidDeployment([("spec.model.source.path", source.path, advice)], name)
    mount = {"name": "model", "mountPath": source.path, "readOnly": True}
    volume = {"name": "model", "hostPath": {"path": source.path}}
    return Weights(source.path, volumes=[volume], mounts=[mount])
