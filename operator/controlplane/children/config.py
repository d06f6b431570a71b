"""The settings files of machines and routers, rendered by constructing what those programs parse."""

import json
from pathlib import Path
from typing import Any, get_args

from controlplane import names
from controlplane.api import seconds, size_bytes
from controlplane.children.model import CACHE, Weights
from controlplane.target import Target
from runtime.config import (
    KvSettings,
    LinkSettings,
    MachineSettings,
    ModelSettings,
    Role,
    RouterSettings,
    SliceSettings,
    TransferSettings,
)

LINK_PORT = 7400
OBSERVE_PORT = 7401
SECRET_FOLDER = "/etc/splitwise/link"
SECRET_KEY = "secret"

RDMA = ("nixl", "mscclpp")
_RUNTIME_TRANSPORTS = get_args(TransferSettings.model_fields["transport"].annotation)


def lacking_transport(target: Target) -> str | None:
    """What the deployment asks of the KV link that this release cannot do, as a sentence; None if nothing.

    A transport that is not there is refused: quietly taking a slower one is the fault to avoid (LINK-1)."""
    wanted = target.deployment.spec.kv_transfer
    if wanted.transport not in _RUNTIME_TRANSPORTS:
        return f"transport {wanted.transport} is not part of this release; write transport: auto"
    if wanted.require_rdma and not set(RDMA) & set(_RUNTIME_TRANSPORTS):
        return "this release has no RDMA transport; drop requireRDMA to serve over TCP"
    return None


def machine(target: Target, role: Role, weights: Weights) -> MachineSettings:
    """Settings that all machines of a pool share; each adds its name and address on the command line."""
    spec = target.deployment.spec
    transport = spec.kv_transfer.transport
    memory = target.pools[role].kv_cache.memory
    return MachineSettings(
        name=role,
        role=role,
        listen=f"0.0.0.0:{LINK_PORT}",
        observe=f"0.0.0.0:{OBSERVE_PORT}",
        revision=target.revision,
        engine=spec.engine.name,
        engine_args=spec.engine.args,
        model=_model(target, weights),
        link=_link(),
        kv=KvSettings(
            block_tokens=spec.engine.kv_block_tokens,
            **({"memory_bytes": size_bytes(memory)} if memory else {}),
        ),
        transfer=TransferSettings.model_validate(
            {
                "transport": transport if transport in _RUNTIME_TRANSPORTS else "auto",
                "data_host": "0.0.0.0",
                "layerwise_above_tokens": spec.kv_transfer.layerwise_above_tokens,
            }
        ),
        prompt_batch_tokens=spec.scheduling.prompt_batch_tokens,
        sequences=spec.scheduling.sequences,
        context_tokens=spec.engine.context_tokens,
        degraded_mode=spec.degraded_mode,
        drain_seconds=spec.drain_seconds,
        cache_dir=Path(CACHE),
    )


def router(target: Target, weights: Weights) -> RouterSettings:
    """Settings of the routers."""
    spec = target.deployment.spec
    return RouterSettings(
        listen=f"0.0.0.0:{spec.router.port}",
        model=_model(target, weights),
        link=_link(),
        degraded_mode=spec.degraded_mode,
        request_timeout_seconds=seconds(spec.request_timeout),
        wait_for_machines_seconds=seconds(spec.scheduling.wait_for_machines),
        restarts=spec.scheduling.restarts,
        client_disconnect=spec.router.client_disconnect,
        drain_seconds=spec.drain_seconds,
        endpoint_slices=SliceSettings(
            namespace=target.namespace,
            selector=names.text({names.DEPLOYMENT: target.name, names.MANAGED_BY: names.MANAGER}),
        ),
    )


def config_map(
    target: Target, name: str, settings: dict[str, Any], *, file: str, component: names.Component
) -> names.Manifest:
    """A ConfigMap that holds one settings file."""
    head = target.child("v1", "ConfigMap", name, component)
    return head | {"data": {file: _pretty(settings)}}


def _model(target: Target, weights: Weights) -> ModelSettings:
    return ModelSettings(
        name=target.deployment.spec.model.name, path=Path(weights.path), revision=weights.revision
    )


def _link() -> LinkSettings:
    return LinkSettings(secret_file=Path(SECRET_FOLDER) / SECRET_KEY)


def _pretty(settings: dict[str, Any]) -> str:
    return json.dumps(settings, indent=2) + "\n"
