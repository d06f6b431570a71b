"""A machine as its routers and probes see it: when it takes work, and what each role is for."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import tiny_llama
from runtime.config import KvSettings, LinkSettings, MachineSettings, ModelSettings, Role
from runtime.errors import Cancelled, Failure
from runtime.kv_link.endpoint import KvLink
from runtime.machine.engines import open_engine
from runtime.machine.machine import Machine
from runtime.stream import Outbox, Stream
from runtime.wire import Event, Load, Phase, Sampling, Start, Step


class Sent:
    """A connection that keeps what it is given."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[Step] = asyncio.Queue()
        self._events: list[Event] = []

    def send(self, step: Step) -> None:
        self.steps.put_nowait(step)

    async def event(self) -> Event:
        """The next one; a step may carry several."""
        while not self._events:
            self._events += (await asyncio.wait_for(self.steps.get(), 20)).events
        return self._events.pop(0)


def settings(folder: Path, role: Role) -> MachineSettings:
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(32))
    return MachineSettings(
        name="m",
        role=role,
        listen=f"unix:{folder}/link",
        model=ModelSettings(name="tiny", path=tiny_llama.make(folder / "model")),
        link=LinkSettings(secret_file=secret),
        kv=KvSettings(memory_bytes=2**22),
        cache_dir=folder / "cache",
    )


@pytest.fixture(params=["token"])
async def machine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Machine]:
    made = settings(tmp_path, request.param)
    engine, pool = open_engine(made)
    machine = Machine(made, engine, pool)
    await machine.start()
    yield machine
    await machine.close()


def leg(phase: Phase, sent: Sent) -> Stream:
    start = Start(1, "r", phase, [3, 4, 5], Sampling(3, 1, ignore_eos=True), 20.0, 9, transfer="t")
    return Stream(Outbox(sent), start)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("machine", "phase"),
    [("prompt", "token"), ("token", "prompt")],
    indirect=["machine"],
)
async def test_a_machine_refuses_the_other_phase(machine: Machine, phase: Phase) -> None:
    with pytest.raises(Failure, match=f"takes no {phase} leg"):
        machine.begin(leg(phase, Sent()), 1e9)
    assert machine.legs == 0


@pytest.mark.parametrize("machine", ["prompt", "token", "mixed"], indirect=True)
async def test_every_role_can_run_a_whole_request(machine: Machine) -> None:
    sent = Sent()
    machine.begin(leg("whole", sent), 1e9)
    tokens = [(await sent.event()) for _ in range(3)]
    assert [event.index for event in tokens] == [0, 1, 2]
    assert tokens[-1].end == "length"
    assert await machine.drain(20)


@pytest.mark.fault("DRAIN-1")
@pytest.mark.parametrize("machine", ["prompt"], indirect=True)
async def test_draining_takes_nothing_new_and_waits_for_what_runs(machine: Machine) -> None:
    sent = Sent()
    stream = leg("prompt", sent)  # waits for a ticket that never comes
    machine.begin(stream, 1e9)
    draining = asyncio.ensure_future(machine.drain(20))
    await asyncio.sleep(0)
    assert not machine.takes_work
    with pytest.raises(Failure, match="draining"):
        machine.begin(leg("whole", sent), 1e9)
    assert not draining.done()
    machine.stop(stream, Cancelled("the client left"))
    assert await draining


@pytest.mark.fault("DRAIN-1")
@pytest.mark.parametrize("machine", ["prompt"], indirect=True)
async def test_draining_gives_up_at_its_deadline(machine: Machine) -> None:
    machine.begin(leg("prompt", Sent()), 1e9)
    assert not await machine.drain(0.01)


@pytest.mark.fault("KV-4")
async def test_a_full_quarantine_takes_no_work_and_tells_the_routers(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that a hung peer may still write are not given out again; the router looks elsewhere."""
    sent = Sent()
    machine._router(sent)  # type: ignore[arg-type]
    monkeypatch.setattr(KvLink, "is_quarantine_full", True)
    assert not machine.takes_work
    machine._on_news([], Load(), None)
    assert (await asyncio.wait_for(sent.steps.get(), 5)).load.draining
    monkeypatch.setattr(KvLink, "is_quarantine_full", False)
    machine._on_news([], Load(), None)
    assert not (await asyncio.wait_for(sent.steps.get(), 5)).load.draining
