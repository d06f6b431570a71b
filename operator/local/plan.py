"""A deployment into settings files and programs: what `up` is going to run. Touches nothing."""

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from controlplane.api import InvalidDeployment, Pool, SplitwiseDeployment, seconds, size_bytes
from controlplane.shortfall import SHORTFALLS
from local.child import Program
from runtime.config import (
    KvSettings,
    LinkSettings,
    MachineAddress,
    MachineSettings,
    ModelSettings,
    Role,
    RouterSettings,
    TransferSettings,
)
from runtime.engine.vllm import environment

HOST = "127.0.0.1"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""More BLAS threads than cores spin against each other: one per machine."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings by file name, and the programs that read them, in the order to start them."""

    settings: Mapping[str, BaseModel]
    programs: tuple[Program, ...]


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


def check(deployment: SplitwiseDeployment) -> None:
    """Raises InvalidDeployment for what cannot be run as local processes."""
    spec = deployment.spec
    problems: list[tuple[str, str, str]] = []
    if spec.engine.name == "vllm":
        try:
            environment.python()
        except ValueError as error:
            advice = f"{error}; or write engine: {{name: reference}}"
            problems.append(("spec.engine.name", spec.engine.name, advice))
    if spec.kv_transfer.transport in ("nixl", "mscclpp"):
        advice = "local processes have shm and tcp only; write transport: auto"
        problems.append(("spec.kvTransfer.transport", spec.kv_transfer.transport, advice))
    if spec.kv_transfer.require_rdma:
        advice = "local processes have no RDMA; remove it"
        problems.append(("spec.kvTransfer.requireRDMA", "true", advice))
    wanted = sum(pool.replicas * _kv_bytes(pool) for pool in spec.effective_pools().values())
    if wanted > (here := memory_bytes()):
        advice = f"the KV-caches want {wanted / 2**30:.1f} GiB together; this computer has {here / 2**30:.1f}"
        problems.append(("spec.pools", "", advice))
    if problems:
        raise InvalidDeployment(problems, f"{deployment.metadata.name} as local processes")


def unused(deployment: SplitwiseDeployment) -> Iterator[str]:
    """Fields that were written and do nothing locally, as paths."""
    spec = deployment.spec
    for role, pool in spec.effective_pools().items():
        written = {"gpu": pool.gpu, "powerCap": pool.power_cap, "podTemplate": pool.pod_template}
        yield from (f"pools.{role}.{name}" for name, value in written.items() if value)
    if spec.router.replicas > 1:
        yield "router.replicas"
    if spec.slo:
        yield "slo"
    for each in SHORTFALLS:  # what is about GPUs has been said with them
        if each.asked(spec) and not each.field.startswith("pools."):
            yield each.field


def plan(
    deployment: SplitwiseDeployment,
    *,
    folder: Path,
    weights: Path,
    port: int,
    port_of: Callable[[], int] = free_port,
) -> Plan:
    """Everything to run in `folder`: machines on Unix sockets there, the router on a loopback port.

    Each machine answers /metrics and /readyz on a port that `port_of` gives.
    """
    spec = deployment.spec
    model = ModelSettings(name=spec.model.name, path=weights)
    link = LinkSettings(secret_file=folder / "secret")
    machines = [
        _machine(deployment, role, index, model=model, link=link, folder=folder, port=port_of())
        for role, pool in spec.effective_pools().items()
        for index in range(pool.replicas)
    ]
    router = RouterSettings(
        listen=f"{HOST}:{port}",
        model=model,
        link=link,
        machines=tuple(MachineAddress(name=each.name, address=each.listen) for each in machines),
        degraded_mode=spec.degraded_mode,
        request_timeout_seconds=seconds(spec.request_timeout),
        wait_for_machines_seconds=seconds(spec.scheduling.wait_for_machines),
        restarts=spec.scheduling.restarts,
        client_disconnect=spec.router.client_disconnect,
        drain_seconds=spec.drain_seconds,
    )
    run_machine = environment.command if spec.engine.name == "vllm" else _command
    programs = [
        _program(run_machine("runtime.machine"), each.name, each.role, each.observe, folder)
        for each in machines
    ]
    programs.append(_program(_command("runtime.router"), "router", "router", router.listen, folder))
    settings: dict[str, BaseModel] = {"router.json": router}
    settings.update({f"{each.name}.json": each for each in machines})
    return Plan(settings, tuple(programs))


def memory_bytes() -> int:
    """The memory of this computer."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _kv_bytes(pool: Pool) -> int:
    return size_bytes(pool.kv_cache.memory or "512Mi")


def _machine(
    deployment: SplitwiseDeployment,
    role: Role,
    index: int,
    *,
    model: ModelSettings,
    link: LinkSettings,
    folder: Path,
    port: int,
) -> MachineSettings:
    spec = deployment.spec
    name = f"{role}-{index}"
    return MachineSettings(
        name=name,
        role=role,
        listen=f"unix:{folder / name}.sock",
        observe=f"{HOST}:{port}",
        engine=spec.engine.name,
        engine_args=spec.engine.args,
        model=model,
        link=link,
        kv=KvSettings(
            memory_bytes=_kv_bytes(spec.effective_pools()[role]),
            block_tokens=spec.engine.kv_block_tokens,
        ),
        transfer=TransferSettings.model_validate(
            {
                "transport": spec.kv_transfer.transport,
                "layerwise_above_tokens": spec.kv_transfer.layerwise_above_tokens,
            }
        ),
        prompt_batch_tokens=spec.scheduling.prompt_batch_tokens,
        sequences=spec.scheduling.sequences,
        context_tokens=spec.engine.context_tokens,
        degraded_mode=spec.degraded_mode,
        drain_seconds=spec.drain_seconds,
    )


def _command(module: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", module)


def _program(command: tuple[str, ...], name: str, role: str, observe: str, folder: Path) -> Program:
    command = (*command, "--config", str(folder / f"{name}.json"))
    return Program(name, role, command, log=folder / f"{name}.log", observe=observe)
