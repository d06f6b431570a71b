"""The routers: the OpenAI-compatible front of a deployment."""

from controlplane import names
from controlplane.children import config, pods
from controlplane.children.model import Weights
from controlplane.merge import merged
from controlplane.names import Manifest
from controlplane.target import Target

FILE = "router.json"


def settings_map(target: Target, weights: Weights) -> Manifest:
    """The routers' settings."""
    settings = config.router(target, weights).model_dump(mode="json")
    return config.config_map(target, names.router(target.name), settings, file=FILE, component="router")


def deployment(target: Target, weights: Weights, settings: Manifest) -> Manifest:
    """The routers' Deployment; changed settings are a changed template."""
    router = target.deployment.spec.router
    own = {
        "labels": names.labels(target.name, "router"),
        "annotations": {names.CONFIG: names.digest(settings["data"])},
    }
    whole: Manifest = {
        "metadata": own,
        "spec": {
            "serviceAccountName": names.router(target.name),
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": pods.grace_seconds(target),
            "securityContext": pods.pod_security(),
            "topologySpreadConstraints": [_spread(target)],
            "imagePullSecrets": pods.pull_secrets(target),
            "initContainers": pods.fetching(target.settings.router_image, weights, tokenizer=True),
            "containers": [_container(target, weights)],
            "volumes": pods.volumes(target, settings["metadata"]["name"], weights),
        },
    }
    whole["spec"] = {key: value for key, value in whole["spec"].items() if value != []}
    head = target.child("apps/v1", "Deployment", names.router(target.name), "router")
    return head | {
        "spec": {
            "replicas": router.replicas,
            "selector": {"matchLabels": names.selector(target.name, "router")},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": merged(merged(whole, router.pod_template), {"metadata": own}),
        }
    }


def service(target: Target) -> Manifest:
    """Where clients connect."""
    router = target.deployment.spec.router
    head = target.child("v1", "Service", names.router(target.name), "router")
    if router.service.annotations:
        head["metadata"]["annotations"] = dict(router.service.annotations)
    return head | {
        "spec": {
            "type": router.service.type,
            "selector": names.selector(target.name, "router"),
            "ports": [{"name": "http", "port": router.port, "targetPort": "http"}],
        }
    }


def endpoint(target: Target) -> str:
    """Where clients inside the cluster connect to."""
    port = target.deployment.spec.router.port
    return f"http://{names.router(target.name)}.{target.namespace}.svc:{port}/v1"


def _container(target: Target, weights: Weights) -> Manifest:
    return {
        "name": "router",
        "image": target.settings.router_image,
        "command": ["python", "-P", "-m", "runtime.router"],
        "args": ["--config", f"{pods.CONFIG_FOLDER}/{FILE}"],
        "env": pods.environment(),
        "ports": pods.ports(("http", target.deployment.spec.router.port)),
        "securityContext": pods.security(),
        "startupProbe": pods.probe("/healthz", "http", period=2, failures=150),
        "readinessProbe": pods.probe("/readyz", "http", period=2, failures=1),
        "livenessProbe": pods.probe("/healthz", "http", period=10, failures=6),
        "lifecycle": pods.leave(),
        "volumeMounts": pods.mounts(weights),
    }


def _spread(target: Target) -> Manifest:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(target.name, "router")},
    }
