"""A deployment as local processes, from the first start until it serves, and to its end."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from controlplane.api import SplitwiseDeployment
from local.child import start_time
from local.health import ask_all, asking, end_those_that_hang
from local.plan import HOST, ONE_THREAD, Plan, check, free_port, plan
from local.rundir import (
    AlreadyUp,
    ProgramRecord,
    Record,
    RunFailed,
    is_owned,
    owned,
    write_record,
    write_secret,
)
from local.supervisor import Supervisor, Watched
from local.wish import Ended, Wish, first

END_GRACE = 5.0
"""To close what is left; the router has the deployment's drain before that."""
VLLM_PATIENCE = 3.0
"""A vLLM machine may take so many times as long to get ready."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Options:
    """How to run it.

    port: of the endpoint; None for the deployment's own, 0 for any that is free. restart: whether programs
    that end are started again. deadline: seconds to get ready.
    """

    port: int | None = None
    restart: bool = True
    deadline: float = 120.0


@dataclass(frozen=True, slots=True)
class Running:
    """A deployment that serves at `endpoint`."""

    endpoint: str
    folder: Path
    supervisor: Supervisor

    async def until_ended(self, wish: Wish) -> None:
        """Returns when the user wishes for the end; programs that hang are ended, to be started again.
        Raises RunFailed if a program ended for good."""
        await first(wish.to_end.wait(), _done(self.supervisor.failure), end_those_that_hang(self.supervisor))
        if self.supervisor.failure.done():
            raise RunFailed(self.supervisor.failure.result())


def port_of(deployment: SplitwiseDeployment, options: Options) -> int:
    """The port to serve on. Raises RunFailed if somebody else listens there."""
    port = deployment.spec.router.port if options.port is None else options.port
    if port == 0:
        return free_port()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "ports go from 0 to 65535"
            why = f"port {port} on {HOST} cannot be had ({reason})"
            raise RunFailed(f"{why}; choose another with --port") from None
    return port


def refuse_early(deployment: SplitwiseDeployment, options: Options) -> None:
    """Raises what would be raised anyway, before anything slow is done."""
    check(deployment)
    name = deployment.metadata.name
    if is_owned(name):
        raise AlreadyUp(name)
    port_of(deployment, options)


@asynccontextmanager
async def running(
    deployment: SplitwiseDeployment, *, weights: Path, options: Options, console: Console, wish: Wish
) -> AsyncIterator[Running]:
    """The deployment, ready to serve; ended with the block. weights: prepared already.

    Raises RunFailed with a sentence if it does not get ready, Ended if the user wished for the end first.
    """
    check(deployment)
    port = port_of(deployment, options)
    endpoint = f"http://{HOST}:{port}"
    with owned(deployment.metadata.name) as folder:
        planned = plan(deployment, folder=folder, weights=weights, port=port)
        _write(folder, planned)
        supervisor = Supervisor(
            environment=os.environ | ONE_THREAD,
            told=lambda sentence: console.print(
                f"[yellow]![/] {escape(sentence)}", highlight=False, soft_wrap=True
            ),
            changed=lambda: write_record(folder, _record(deployment, endpoint, supervisor)),
            restart=options.restart,
        )
        try:
            await supervisor.start(planned.programs)
            patience = VLLM_PATIENCE if deployment.spec.engine.name == "vllm" else 1.0
            await _ready(supervisor, deadline=options.deadline * patience, console=console, wish=wish)
            supervisor.settle()
            yield Running(endpoint, folder, supervisor)
        finally:
            await _end(supervisor, wish, drain=deployment.spec.drain_seconds)


async def _ready(supervisor: Supervisor, *, deadline: float, console: Console, wish: Wish) -> None:
    said = ""

    def note(text: str) -> None:
        nonlocal said
        said = text
        status.update(f"starting: {said}")

    with console.status("starting") as status:
        try:
            async with asyncio.timeout(deadline):
                polls = _poll_all(supervisor, note)
                await first(polls, wish.to_end.wait(), _done(supervisor.failure))
        except TimeoutError:
            raise RunFailed(f"not ready after {deadline:g} seconds: {said}") from None
    if supervisor.failure.done():
        raise RunFailed(supervisor.failure.result())
    if wish.to_end.is_set():
        raise Ended


async def _poll_all(supervisor: Supervisor, note: Callable[[str], None]) -> None:
    """Until every program says that it is ready; the router does once it can use its machines."""
    waiting = {name: each.program.observe for name, each in supervisor.watched.items()}
    async with asking(5.0) as session:
        while True:
            answers = await ask_all(session, waiting, "/readyz")
            waiting = {name: address for name, address in waiting.items() if not answers[name].fine}
            if not waiting:
                return
            words = ((name, answers[name].words) for name in waiting)
            note("waiting for " + ", ".join(f"{name} ({said})" if said else name for name, said in words))
            await asyncio.sleep(_POLL_SECONDS)


async def _done(future: asyncio.Future[str]) -> None:
    await asyncio.wait({future})


async def _end(supervisor: Supervisor, wish: Wish, *, drain: float) -> None:
    """The router first, so that machines serve what it still drains; a second wish ends all at once."""

    async def insist() -> None:
        await wish.at_once.wait()
        supervisor.kill()

    insisting = asyncio.create_task(insist())
    try:
        await supervisor.stop("router", grace=drain + END_GRACE)
        await supervisor.stop(grace=END_GRACE)
    finally:
        supervisor.kill()
        insisting.cancel()


def _write(folder: Path, planned: Plan) -> None:
    write_secret(folder / "secret")
    for name, settings in planned.settings.items():
        (folder / name).write_text(settings.model_dump_json(indent=2))


def _record(deployment: SplitwiseDeployment, endpoint: str, supervisor: Supervisor) -> Record:
    return Record(
        deployment=deployment.metadata.name,
        model=deployment.spec.model.name,
        endpoint=endpoint,
        pid=os.getpid(),
        started=start_time(os.getpid()),
        drain_seconds=deployment.spec.drain_seconds,
        programs=tuple(_program_record(watched) for watched in supervisor.watched.values()),
    )


def _program_record(watched: Watched) -> ProgramRecord:
    return ProgramRecord(
        name=watched.program.name,
        role=watched.program.role,
        log=watched.program.log,
        observe=watched.program.observe,
        pid=watched.process.pid,
        started=watched.process.started,
        state=watched.state,
        restarts=watched.restarts,
    )
