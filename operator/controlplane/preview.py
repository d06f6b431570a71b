"""Previews and status as people read them in a terminal."""

from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from controlplane.api import KIND, SplitwiseDeployment, read
from controlplane.api.status import Condition, PoolStatus, Status
from controlplane.kube import ApiServer
from controlplane.render import diff, render, steps
from runtime.kubernetes import find_access


def print_render(file: Path, console: Console) -> None:
    """The YAML of everything that would be applied. Raises InvalidDeployment."""
    text = yaml.safe_dump_all(render(read(file)), sort_keys=False, width=110)
    console.print(text, markup=False, highlight=False, soft_wrap=True, end="")


def print_diff(old: Path, new: Path, console: Console) -> None:
    """What `new` would do in the place of `old`: each object with its reasons, then the rollout's steps.

    Raises InvalidDeployment."""
    before, after = read(old), read(new)
    previews = diff(before, after)
    for preview in previews:
        restarts = "   [bold]its pods are replaced[/bold]" if preview.restarts else ""
        console.print(f"{preview.action} {preview.ref.kind}/{preview.ref.name}{restarts}", highlight=False)
        for reason in preview.why:
            console.print(f"    {reason}", markup=False, highlight=False, soft_wrap=True)
    if not previews:
        console.print("nothing would change")
        return
    _print_steps(before, after, console)


def _print_steps(before: SplitwiseDeployment, after: SplitwiseDeployment, console: Console) -> None:
    found = list(steps(before, after))
    if not found:
        return
    table = Table("step", *found[0], title="machines by StatefulSet, if every new one comes up")
    for number, sizes in enumerate(found, 1):
        table.add_row(str(number), *(str(size) for size in sizes.values()))
    console.print(table)


async def print_status(name: str, namespace: str | None, console: Console) -> None:
    """How a deployment in a cluster stands. Raises ApiError and NoAccess."""
    access = find_access()
    async with ApiServer(access) as kube:
        document = await kube.get(KIND, namespace or access.namespace, name)
    console.print(*drawn(document.get("status") or {}, name), sep="\n")


def drawn(status: dict[str, object], name: str) -> list[Table | str]:
    """The parts of a status, ready to be printed."""
    said = Status.model_validate(status)
    if not said.conditions:
        return [f"{name}: no operator has looked at it yet"]
    head = f"{name}   {said.design or ''}   {said.endpoint or 'no endpoint yet'}"
    return [head, _pools(said), _conditions(said.conditions)]


def _pools(said: Status) -> Table:
    table = Table("pool", "ready", "up to date", "GPUs", "power cap", "KV over", "nodes")
    pools = said.pools.model_dump() if said.pools else {}
    for role in pools:
        pool: PoolStatus | None = getattr(said.pools, role)
        if pool is not None:
            ready, updated = (
                f"{pool.ready_replicas}/{pool.desired}",
                f"{pool.updated_replicas}/{pool.desired}",
            )
            cap = _cap(pool)
            nodes = ", ".join(pool.nodes)
            table.add_row(role, ready, updated, pool.gpu_product or "-", cap, pool.transport or "-", nodes)
    return table


def _cap(pool: PoolStatus) -> str:
    cap = pool.power_cap
    if cap is None:
        return "-"
    asked = f"{cap.requested_percent}%" if cap.requested_percent is not None else f"{cap.requested_watts} W"
    return f"{asked}, {cap.effective_watts} W in force" if cap.effective_watts else f"{asked}, not in force"


def _conditions(conditions: tuple[Condition, ...]) -> Table:
    table = Table("condition", "is", "reason", "message", show_lines=False)
    for each in conditions:
        good = each.status == ("False" if each.type in ("Degraded", "Progressing") else "True")
        style = "green" if good else "yellow" if each.type == "Progressing" else "red"
        table.add_row(each.type, f"[{style}]{each.status}[/{style}]", each.reason, each.message)
    return table
