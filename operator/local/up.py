"""`splitwise up`: a deployment from a file, as local processes, until Ctrl-C."""

import asyncio
import json
import shlex
from pathlib import Path

from rich.console import Console

from controlplane.api import SplitwiseDeployment, read
from local.plan import unused
from local.serve import Options, refuse_early, running
from local.weights import existing, prepared, weights
from local.wish import Ended, Wish


def up(file: Path, *, model: Path | None, options: Options, console: Console) -> None:
    """Serve the deployment until the user ends it. model: weights to use instead of the file's.

    Raises InvalidDeployment or RunFailed.
    """
    deployment = read(file)
    refuse_early(deployment, options)
    for field in unused(deployment):
        console.print(f"[yellow]![/] spec.{field} has no effect on local processes", highlight=False)
    ready = weights_of(deployment, file=file, model=model, console=console)
    asyncio.run(_serve(deployment, weights=ready, options=options, console=console))


def weights_of(deployment: SplitwiseDeployment, *, file: Path, model: Path | None, console: Console) -> Path:
    """The deployment's weights, prepared for the engine. Raises RunFailed."""
    source = deployment.spec.model.effective_source
    path = existing(model) if model else weights(source, beside=file.parent)
    return prepared(path, console, engine=deployment.spec.engine.name)


async def _serve(
    deployment: SplitwiseDeployment, *, weights: Path, options: Options, console: Console
) -> None:
    wish = Wish()
    try:
        with wish.heard():
            async with running(
                deployment, weights=weights, options=options, console=console, wish=wish
            ) as run:
                _greet(deployment, run.endpoint, console)
                await run.until_ended(wish)
                console.print("ending; once more Ctrl-C ends at once")
    except Ended:
        return


def _greet(deployment: SplitwiseDeployment, endpoint: str, console: Console) -> None:
    name = deployment.spec.model.name
    pools = deployment.spec.effective_pools().items()
    counts = " and ".join(f"{pool.replicas} {role}" for role, pool in pools)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = shlex.quote(json.dumps({"model": name, "messages": messages}))
    curl = f"curl {endpoint}/v1/chat/completions -H 'Content-Type: application/json' -d {body}"
    console.print(
        f"[green]ready[/]  {name} at [bold]{endpoint}/v1[/], machines: {counts}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(curl, highlight=False, soft_wrap=True, markup=False)
    console.print("Ctrl-C ends it.")
