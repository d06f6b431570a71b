"""Machines that die, hang and come back: real processes, killed and stopped."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.kv_link.transport import Faults
from tests.unit.kv_link.machines import (
    BIG,
    LAYOUT,
    LAYOUTS,
    Hold,
    Machine,
    Way,
    begin,
    offer,
    running,
    soon,
    until,
    whole,
)

WAYS: list[Way] = ["shm", "tcp"]
WITHIN = 20.0
ROOT = Path(__file__).parents[3]


class Child:
    """A machine process; see `machine_process`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.address = ""
        self.stopped = False

    def tell(self, **order: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order).encode() + b"\n")

    async def hear(self, key: str, name: object = None) -> dict[str, Any]:
        """The next news with this key, and this value if one is given; others are skipped."""
        assert self.process.stdout
        async with asyncio.timeout(WITHIN):
            while line := await self.process.stdout.readline():
                news: dict[str, Any] = json.loads(line)
                if key in news and name in (None, news[key]):
                    return news
        raise AssertionError(f"the process ended before it said {key}")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.process.pid, number)


Spawn = Callable[..., Any]


@pytest.fixture
async def spawn(tmp_path: Path) -> AsyncIterator[Spawn]:
    """Starts machine processes and sees to their end."""
    children: list[Child] = []

    async def make(name: str, way: Way, *, layout: str = "small", dead_after: float = 5.0) -> Child:
        options = {
            "name": name,
            "folder": str(tmp_path),
            "way": way,
            "layout": layout,
            "dead_after": dead_after,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.unit.kv_link.machine_process", json.dumps(options),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        child = Child(process)
        children.append(child)
        child.address = (await child.hear("address"))["address"]
        return child

    yield make
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        async with asyncio.timeout(WITHIN):
            await child.process.communicate()


@pytest.mark.parametrize("way", WAYS)
async def test_two_processes_share_a_clock(tmp_path: Path, spawn: Spawn, way: Way) -> None:
    prompt, token = await spawn("p", way), await spawn("t", way)
    prompt.tell(expect="a", source=[1, 2], seconds=10)
    token.tell(arm="a", prompt=prompt.address, target=[5, 6], seconds=10)
    news = await token.hear("arrived", "a")
    assert (news["whole"], news["transport"]) == (True, way)
    assert 0 <= news["visible"] < WITHIN
    assert await prompt.hear("drained", "a")


@pytest.mark.slow
@pytest.mark.fault("KV-1")
@pytest.mark.parametrize("way", WAYS)
async def test_a_prompt_machine_killed_at_every_step(tmp_path: Path, spawn: Spawn, way: Way) -> None:
    """Its transfers fail and their blocks come back; another machine's transfer does not notice."""
    token, other = Machine("t", tmp_path, way=way), Machine("o", tmp_path, way=way)
    moments = [[layer, when] for layer in range(LAYOUT.layers) for when in ("before", "after")]
    children = [await spawn(f"p{number}", way) for number in range(len(moments))]
    async with running(token, other):
        for number, (child, moment) in enumerate(zip(children, moments, strict=True)):
            dying, waiting = f"dying-{number}", f"waiting-{number}"
            child.tell(expect=dying, source=[1, 2], seconds=15, hold=moment)
            token.kv.arm(dying, prompt_machine=child.address, blocks=[5, 6], deadline=soon(15))
            token.kv.arm(waiting, prompt_machine=child.address, blocks=[7], deadline=soon(15))
            bystander = await begin(other, token, f"{number}", [3], [8])
            await child.hear("held", dying)
            child.kill()
            for name in (dying, waiting):
                await token.news.of("failed", name, WITHIN)
                await token.news.of("fenced", name, WITHIN)
            offer(bystander, [3])
            await token.news.of("arrived", f"{number}")
            assert token.holds([8], f"{number}")
            await whole(other, token, f"after-{number}", [3, 4], [5, 6])
        assert token.kv.open_transfers == token.kv.quarantined_blocks == 0


@pytest.mark.slow
@pytest.mark.fault("LINK-3")
@pytest.mark.fault("KV-4")
@pytest.mark.parametrize("way", WAYS)
async def test_a_token_machine_restarted_five_times_under_its_name(
    tmp_path: Path, spawn: Spawn, way: Way
) -> None:
    """A put that was held over the death of its target goes nowhere; the next incarnation works at once,
    and still does after the old put was let go."""
    hold = Hold("0")
    prompt = Machine("p", tmp_path, way=way, faults=Faults(put=hold.put))
    token = await spawn("t", way)
    async with running(prompt):
        await arm(prompt, token, "0", [1, 2], [5, 6])
        await hold.reached()
        for life in range(1, 6):
            old, new = f"{life - 1}", f"{life}"
            token.kill()
            await prompt.news.of("failed", old, WITHIN)
            token = await spawn("t", way)
            await arm(prompt, token, f"{new}-whole", [3, 4], [5, 6])
            assert (await token.hear("arrived", f"{new}-whole"))["whole"]
            hold.release()
            await prompt.news.of("drained", old, WITHIN)
            prompt.kv.expect(new, deadline=soon(15))
            token.tell(arm=new, prompt=prompt.address, target=[7, 8], seconds=15)
            await prompt.news.of("ticket", new, WITHIN)  # left open until the next death
        prompt.kv.forget("5", "the test is over")
        await prompt.news.of("drained", "5", WITHIN)
        assert prompt.kv.open_transfers == 0


async def arm(prompt: Machine, token: Child, name: str, source: list[int], target: list[int]) -> None:
    """A transfer to a child, computed as soon as its ticket comes."""
    prompt.fill(source, name)
    prompt.kv.expect(name, deadline=soon(15))
    token.tell(arm=name, prompt=prompt.address, target=target, seconds=15)
    offer((await prompt.news.of("ticket", name, WITHIN))[2], source)


@pytest.mark.fault("KV-1")
async def test_tcp_a_stopped_prompt_machine_is_cut_off(tmp_path: Path, spawn: Spawn) -> None:
    token, child = Machine("t", tmp_path, way="tcp"), await spawn("p", "tcp")
    async with running(token):
        child.tell(expect="a", source=[1, 2], seconds=15, hold=[1, "before"])
        token.kv.arm("a", prompt_machine=child.address, blocks=[5, 6], deadline=soon(1.0))
        await child.hear("held", "a")
        child.kill(signal.SIGSTOP)
        assert "in time" in (await token.news.of("failed", "a", WITHIN))[2]
        await token.news.of("fenced", "a", WITHIN)
        assert token.kv.counts.forced_fences == 1
        assert token.kv.open_transfers == 0
        child.kill(signal.SIGCONT)
        child.tell(release=True)
        await child.hear("drained", "a")
        assert not any(any(token.pool.blocks(layer, 5, 2)) for layer in (1, 2))


@pytest.mark.fault("KV-1")
@pytest.mark.parametrize("end", ["continues", "dies", "continues after its connection was given up"])
async def test_shm_a_stopped_prompt_machine_keeps_its_blocks_in_quarantine(
    tmp_path: Path, spawn: Spawn, end: str
) -> None:
    """Until it runs again and drains, lets go because nobody talks to it any more, or is dead."""
    given_up = "given up" in end
    token = Machine("t", tmp_path, way="shm", dead_after=1.0 if given_up else 30.0)
    other, child = Machine("o", tmp_path, way="shm"), await spawn("p", "shm", dead_after=30.0)
    async with running(token, other):
        child.tell(expect="a", source=[1, 2], seconds=15, hold=[1, "before"])
        token.kv.arm("a", prompt_machine=child.address, blocks=[5, 6], deadline=soon(1.0))
        await child.hear("held", "a")
        child.kill(signal.SIGSTOP)
        await token.news.of("failed", "a", WITHIN)
        await until(lambda: token.kv.quarantined_blocks == 2)
        if given_up:
            await until(lambda: _ended(token))
        await whole(other, token, "b", [1, 2], [7, 8])
        assert "fenced" not in token.news.kinds("a")
        if end == "dies":
            child.kill(signal.SIGKILL)
        else:
            child.kill(signal.SIGCONT)
            child.tell(release=True)
        await token.news.of("fenced", "a", WITHIN)
        assert token.kv.quarantined_blocks == 0
        await whole(other, token, "c", [1, 2], [5, 6])


def _ended(token: Machine) -> bool:
    """Whether the token machine gave up every connection it made."""
    return all(callee.ended is not None for callee in token.kv._token_side._callees.values())


@pytest.mark.fault("KV-6")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("by", ["deadline", "silence"])
async def test_a_stopped_token_machine_does_not_hang_the_prompt_machine(
    tmp_path: Path, spawn: Spawn, way: Way, by: str
) -> None:
    """More bytes than the sockets buffer, into a process that reads none: the source blocks come back."""
    layout = LAYOUTS["big"]
    silence = by == "silence"
    prompt = Machine("p", tmp_path, way=way, layout=layout, dead_after=2.0 if silence else 30.0)
    child = await spawn("t", way, layout="big", dead_after=30.0)
    blocks = list(range(BIG.blocks))
    async with running(prompt):
        await arm(prompt, child, "warm", [1], [2])
        assert (await child.hear("arrived", "warm"))["whole"]
        prompt.kv.expect("a", deadline=soon(30.0 if silence else 2.0))
        child.tell(arm="a", prompt=prompt.address, target=blocks, seconds=30)
        _, _, put = await prompt.news.of("ticket", "a", WITHIN)
        child.kill(signal.SIGSTOP)
        put.begin(64)
        for layer in range(layout.layers):
            put.layer(layer, 0, blocks)
        await prompt.news.of("failed", "a", WITHIN)
        await prompt.news.of("drained", "a", WITHIN)
        assert prompt.kv.open_transfers == 0
        child.kill(signal.SIGCONT)
        assert await child.hear("failed", "a")
        assert await child.hear("fenced", "a")
        await arm(prompt, child, "after", [1], [2])
        assert (await child.hear("arrived", "after"))["whole"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_killed_machine_leaves_no_name_behind(tmp_path: Path, spawn: Spawn, way: Way) -> None:
    before = set(os.listdir("/dev/shm"))
    child = await spawn("p", way)
    child.kill()
    await child.process.wait()
    assert set(os.listdir("/dev/shm")) <= before
    assert sorted(os.listdir(tmp_path)) == ["secret"]
