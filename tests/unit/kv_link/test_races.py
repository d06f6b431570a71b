"""Whoever comes first, and whatever comes to nothing: ten thousand times, and nothing is left."""

import asyncio
import gc
import os
import random
import threading
from pathlib import Path

import pytest

from tests.unit.kv_link.machines import Machine, Way, offer, running, soon

WAYS: list[Way] = ["shm", "tcp"]
ROUNDS, AT_ONCE = 10_000, 20


class Race:
    """Transfers of one block, with both sides in either order and one giving up now and then."""

    def __init__(self, prompt: Machine, token: Machine) -> None:
        self.prompt, self.token = prompt, token
        self.rng = random.Random(11)

    async def run(self, name: str, block: int) -> None:
        sides = [self.expect, self.arm]
        self.rng.shuffle(sides)
        for side in sides:
            side(name, block)
            for _ in range(self.rng.randrange(4)):
                await asyncio.sleep(0)
        end = self.rng.choice((self.finish, self.finish, self.finish, self.forget, self.revoke))
        await end(name)
        await self.prompt.news.of("drained", name)

    def expect(self, name: str, block: int) -> None:
        self.prompt.kv.expect(name, deadline=soon(30))

    def arm(self, name: str, block: int) -> None:
        self.token.kv.arm(name, prompt_machine=self.prompt.address, blocks=[block], deadline=soon(30))

    async def finish(self, name: str) -> None:
        offer((await self.prompt.news.of("ticket", name))[2], [0], tokens=1)
        await self.token.news.of("arrived", name)

    async def forget(self, name: str) -> None:
        self.prompt.kv.forget(name, "given up")
        await self.token.news.of("fenced", name)

    async def revoke(self, name: str) -> None:
        self.token.kv.revoke(name, "given up")
        self.prompt.kv.forget(name, "the other leg gave up")
        await self.token.news.of("fenced", name)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_arm_and_expect_race_ten_thousand_times(tmp_path: Path, way: Way) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        race = Race(prompt, token)
        for start in range(0, ROUNDS, AT_ONCE):
            await asyncio.gather(*(race.run(f"{start + i}", i) for i in range(AT_ONCE)))
            prompt.news.forget_all()
            token.news.forget_all()
        assert prompt.kv.open_transfers == token.kv.open_transfers == 0
        transfers = token.kv.counts.transfers
        arrived = sum(number for (_, _, outcome), number in transfers.items() if outcome == "arrived")
        assert ROUNDS // 2 < arrived < ROUNDS
        assert len(prompt.connections) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_thousands_of_transfers_and_reconnections_leave_nothing(tmp_path: Path, way: Way) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        await many(prompt, token, "warm")
        before = held()
        await many(prompt, token, "again")
        assert held() == before
        side = token.kv._token_side
        assert len(side.tickets._free) == 4096
        assert [getattr(callee._sink, "admitted", 0) for callee in side._living] == [0]
        assert len(prompt.kv._prompt_side._callers) == 1


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


async def many(prompt: Machine, token: Machine, tag: str) -> None:
    """1,500 transfers over several connections, each of them broken under a waiting ticket."""
    for start in range(0, 1500, AT_ONCE):
        names = [f"{tag}-{start + i}" for i in range(AT_ONCE)]
        for block, name in enumerate(names):
            prompt.kv.expect(name, deadline=soon(30))
            token.kv.arm(name, prompt_machine=prompt.address, blocks=[block], deadline=soon(30))
        for name in names:
            offer((await prompt.news.of("ticket", name))[2], [0])
            await token.news.of("arrived", name)
            await prompt.news.of("drained", name)
        prompt.news.forget_all()
        token.news.forget_all()
        if start % 500 == 0:
            prompt.connections.pop().close("the network went away")
            token.kv.arm("lost", prompt_machine=prompt.address, blocks=[30], deadline=soon(30))
            await token.news.of("fenced", "lost")
    await settled(prompt, token)


async def settled(prompt: Machine, token: Machine) -> None:
    """One more transfer over a fresh connection; connections before it have ended."""
    token.news.forget_all()
    prompt.news.forget_all()
    prompt.kv.expect("settle", deadline=soon())
    token.kv.arm("settle", prompt_machine=prompt.address, blocks=[0], deadline=soon())
    offer((await prompt.news.of("ticket", "settle"))[2], [0])
    await token.news.of("arrived", "settle")
    await prompt.news.of("drained", "settle")
    async with asyncio.timeout(10):
        while len(token.kv._token_side._living) + len(prompt.kv._prompt_side._callers) > 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
