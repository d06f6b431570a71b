"""What the pods of machines and routers have in common: few rights, a link secret, a settings file."""

from collections.abc import Sequence

from controlplane import names
from controlplane.children.config import SECRET_FOLDER
from controlplane.children.model import CACHE, Weights
from controlplane.names import Manifest
from controlplane.target import Target

CONFIG_FOLDER = "/etc/splitwise/config"
USER = 65532
LEAVE_SECONDS = 5
"""After the decision to stop a pod and before it is told: routers hear of it first (DRAIN-3)."""
END_SECONDS = 15
"""To close what is left after the drain."""


def security() -> Manifest:
    """The restricted pod security profile, for a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def volumes(target: Target, config: str, weights: Weights) -> list[Manifest]:
    """Volumes of every pod."""
    return [
        {"name": "config", "configMap": {"name": config}},
        {"name": "link", "secret": {"secretName": names.secret(target.name), "defaultMode": 0o440}},
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        *weights.volumes,
    ]


def mounts(weights: Weights) -> list[Manifest]:
    """Where they are mounted."""
    return [
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
        {"name": "link", "mountPath": SECRET_FOLDER, "readOnly": True},
        {"name": "cache", "mountPath": CACHE},
        {"name": "tmp", "mountPath": "/tmp"},
        *weights.mounts,
    ]


def environment() -> list[Manifest]:
    """The pod's own name and address, and a cache in the only folders that can be written."""
    fields = (("POD_NAME", "metadata.name"), ("POD_IP", "status.podIP"))
    own = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields]
    return [*own, {"name": "HF_HOME", "value": f"{CACHE}/hub"}]


def fetching(image: str, weights: Weights, *, tokenizer: bool) -> list[Manifest]:
    """The container that brings a model from the hub before the program starts; none for other sources."""
    hub = weights.hub
    if hub is None:
        return []
    env = environment()
    if hub.token_secret:
        token = {"secretKeyRef": {"name": hub.token_secret, "key": "token"}}
        env.append({"name": "HF_TOKEN", "valueFrom": token})
    options = ["--revision", hub.revision, "--to", weights.path, *["--tokenizer"] * tokenizer]
    return [
        {
            "name": "model",
            "image": image,
            "command": ["python", "-P", "-m", "runtime.fetch"],
            "args": [hub.id, *options],
            "env": env,
            "securityContext": security(),
            "volumeMounts": [
                {"name": "cache", "mountPath": CACHE},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
        }
    ]


def probe(path: str, port: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": 2,
    }


def leave() -> Manifest:
    """A short pause before SIGTERM, in which routers stop choosing the pod."""
    return {"preStop": {"sleep": {"seconds": LEAVE_SECONDS}}}


def grace_seconds(target: Target) -> int:
    """Longer than a pod drains: the pause before it is told, the drain, and a margin."""
    return LEAVE_SECONDS + target.deployment.spec.drain_seconds + END_SECONDS


def pull_secrets(target: Target) -> list[Manifest]:
    return [{"name": name} for name in target.settings.image_pull_secrets]


def ports(*named: tuple[str, int]) -> Sequence[Manifest]:
    return [{"name": name, "containerPort": port} for name, port in named]
