"""No put ever lands in blocks that were given to somebody else, and no block is kept for ever."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from runtime.kv_link.messages import Armed, Sealed
from runtime.kv_link.runs import Run
from runtime.kv_link.transport import Faults
from runtime.wire import Token
from tests.unit.kv_link.machines import (
    LAYOUT,
    QUICK,
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
PATIENT = replace(QUICK, fence_after=30.0)
HASTY = replace(QUICK, fence_after=0.05)


# ---- a late put


@pytest.mark.fault("KV-4")
async def test_shm_blocks_wait_for_a_held_put(tmp_path: Path) -> None:
    """The writer cannot be stopped, so the blocks stay leased: quarantined, then free once it drained."""
    hold = Hold("a")
    prompt = Machine("p", tmp_path, way="shm", limits=HASTY, faults=Faults(put=hold.put))
    other, token = Machine("o", tmp_path, way="shm"), Machine("t", tmp_path, way="shm", limits=HASTY)
    async with running(prompt, other, token):
        offer(await begin(prompt, token, "a", [1, 2], [5, 6]), [1, 2])
        await hold.reached()
        token.kv.revoke("a", "the client left")
        await until(lambda: token.kv.quarantined_blocks == 2)
        with pytest.raises(ValueError, match="still be written"):
            token.kv.arm("b", prompt_machine=other.address, blocks=[6, 7], deadline=soon())
        await whole(other, token, "b", [3, 4], [7, 8])
        assert "fenced" not in token.news.kinds("a")
        hold.release()  # the late put lands, in blocks that are still a's
        await token.news.of("fenced", "a")
        assert token.kv.quarantined_blocks == 0
        await whole(other, token, "c", [3, 4], [5, 6])
        await prompt.news.of("drained", "a")
        assert token.holds([5, 6], "c")
        assert token.holds([7, 8], "b")
        assert token.news.kinds("a") == ["fenced"]


@pytest.mark.fault("KV-4")
async def test_tcp_cuts_a_held_put_off(tmp_path: Path) -> None:
    """The receiver fences by itself: the blocks are another's while the late put still waits to move."""
    hold = Hold("a")
    prompt = Machine("p", tmp_path, way="tcp", limits=PATIENT, faults=Faults(put=hold.put))
    other, token = Machine("o", tmp_path, way="tcp"), Machine("t", tmp_path, way="tcp", limits=HASTY)
    async with running(prompt, other, token):
        offer(await begin(prompt, token, "a", [1, 2], [5, 6]), [1, 2])
        await hold.reached()
        token.kv.revoke("a", "the client left")
        await token.news.of("fenced", "a")
        assert token.kv.counts.forced_fences == 1
        await whole(other, token, "b", [3, 4], [5, 6])
        hold.release()
        await prompt.news.of("drained", "a")
        assert token.holds([5, 6], "b")


@pytest.mark.fault("KV-2", "KV-4")
@pytest.mark.parametrize("way", WAYS)
async def test_a_revoked_put_that_was_held_moves_nothing_more(tmp_path: Path, way: Way) -> None:
    """What waits behind the held put is looked at again before it moves; then the peer hears DRAINED."""
    hold = Hold("a", layer=0)
    prompt = Machine("p", tmp_path, way=way, limits=PATIENT, faults=Faults(put=hold.put))
    token = Machine("t", tmp_path, way=way, limits=PATIENT)
    async with running(prompt, token):
        offer(await begin(prompt, token, "a", [1, 2], [5, 6]), [1, 2])
        await hold.reached()
        token.kv.revoke("a", "the client left")
        await prompt.news.of("failed", "a")
        assert prompt.news.kinds("a") == ["ticket", "failed"]
        assert token.news.kinds("a") == []
        hold.release()
        await token.news.of("fenced", "a")
        await prompt.news.of("drained", "a")
        assert not any(any(token.pool.blocks(layer, 5, 2)) for layer in (1, 2))
        await whole(prompt, token, "b", [3, 4], [5, 6])
        assert prompt.kv.open_transfers == token.kv.open_transfers == 0


@pytest.mark.parametrize("way", WAYS)
async def test_stopping_one_transfer_does_not_wait_for_another(tmp_path: Path, way: Way) -> None:
    hold = Hold("busy")
    prompt = Machine("p", tmp_path, way=way, limits=PATIENT, faults=Faults(put=hold.put))
    token = Machine("t", tmp_path, way=way, limits=PATIENT)
    async with running(prompt, token):
        offer(await begin(prompt, token, "busy", [1, 2], [5, 6]), [1, 2])
        offer(await begin(prompt, token, "a", [3], [7]), [3])
        await hold.reached()
        token.kv.revoke("a", "the client left")
        await token.news.of("fenced", "a")
        await prompt.news.of("drained", "a")
        hold.release()
        await token.news.of("arrived", "busy")
        assert not any(any(token.pool.blocks(layer, 7, 1)) for layer in range(3))


# ---- signals


def lost(ticket: Armed, puts: int) -> Iterable[tuple[Armed, int]]:
    return []


def early_by_one(ticket: Armed, puts: int) -> Iterable[tuple[Armed, int]]:
    return [(ticket, puts - 1)]


def of_the_epoch_before(ticket: Armed, puts: int) -> Iterable[tuple[Armed, int]]:
    return [(structs.replace(ticket, epoch=ticket.epoch - 1), puts)]


def of_another_slot(ticket: Armed, puts: int) -> Iterable[tuple[Armed, int]]:
    return [(structs.replace(ticket, slot=ticket.slot + 1), puts)]


def no_doorbell(seal: Sealed) -> Iterable[Sealed]:
    return []


def boastful(seal: Sealed) -> Iterable[Sealed]:
    return [structs.replace(seal, puts=seal.puts + 1)]


def one_byte_short(seal: Sealed) -> Iterable[Sealed]:
    return [structs.replace(seal, bytes=seal.bytes - 1)]


def nothing_put(transfer: str, layer: int, runs: Sequence[Run]) -> Iterable[tuple[int, Sequence[Run]]]:
    return [] if layer == 2 else [(layer, runs)]


def one_layer_twice(transfer: str, layer: int, runs: Sequence[Run]) -> Iterable[tuple[int, Sequence[Run]]]:
    return [(1 if layer == 2 else layer, runs)]


def one_block_short(transfer: str, layer: int, runs: Sequence[Run]) -> Iterable[tuple[int, Sequence[Run]]]:
    return [(layer, [run._replace(length=1) for run in runs])]


WRONG = {
    "signal lost": Faults(signal=lost),
    "signal of fewer puts": Faults(signal=early_by_one),
    "signal of an old epoch": Faults(signal=of_the_epoch_before),
    "signal of another slot": Faults(signal=of_another_slot),
    "doorbell lost": Faults(doorbell=no_doorbell),
    "more claimed than put": Faults(doorbell=boastful),
    "bytes missing": Faults(doorbell=one_byte_short),
    "a layer never put": Faults(put=nothing_put),
    "one layer twice and one missing": Faults(put=one_layer_twice),
    "every put too short": Faults(put=one_block_short),
}


@pytest.mark.fault("KV-3")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", WRONG)
async def test_what_did_not_come_right_never_arrives(tmp_path: Path, way: Way, what: str) -> None:
    prompt = Machine("p", tmp_path, way=way, faults=WRONG[what])
    token = Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        prompt.fill([1, 2], "a")
        prompt.kv.expect("a", deadline=soon())
        token.kv.arm("a", prompt_machine=prompt.address, blocks=[5, 6], deadline=soon(0.4))
        offer((await prompt.news.of("ticket", "a"))[2], [1, 2])
        await token.news.of("failed", "a")
        await token.news.of("fenced", "a")
        await prompt.news.of("drained", "a")
        assert token.news.kinds("a") == ["failed", "fenced"]
        assert token.kv.open_transfers == prompt.kv.open_transfers == 0


@pytest.mark.parametrize("way", WAYS)
async def test_signals_and_doorbells_that_come_twice_count_once(tmp_path: Path, way: Way) -> None:
    faults = Faults(
        signal=lambda ticket, puts: [(ticket, puts), (ticket, puts)], doorbell=lambda seal: [seal, seal]
    )
    prompt, token = Machine("p", tmp_path, way=way, faults=faults), Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        await whole(prompt, token, "a", [1], [5])
        await whole(prompt, token, "b", [2], [5])
        assert token.news.kinds("a") == token.news.kinds("b") == ["arrived"]


@pytest.mark.fault("KV-3")
@pytest.mark.parametrize("way", WAYS)
async def test_a_signal_of_an_old_ticket_does_not_ready_the_next_user_of_its_slot(
    tmp_path: Path, way: Way
) -> None:
    """b's signal is lost, and a's is posted again in its place: same slot, old epoch."""
    past: list[Armed] = []

    def repeat(ticket: Armed, puts: int) -> Iterable[tuple[Armed, int]]:
        past.append(ticket)
        return [(past[0], puts)]

    prompt, token = (
        Machine("p", tmp_path, way=way, faults=Faults(signal=repeat)),
        Machine("t", tmp_path, way=way),
    )
    async with running(prompt, token):
        await whole(prompt, token, "a", [1], [5])
        prompt.kv.expect("b", deadline=soon())
        token.kv.arm("b", prompt_machine=prompt.address, blocks=[6], deadline=soon(0.3))
        offer((await prompt.news.of("ticket", "b"))[2], [1])
        await token.news.of("failed", "b")
        await token.news.of("fenced", "b")
        assert (past[1].slot, past[1].epoch > past[0].epoch) == (past[0].slot, True)


@pytest.mark.fault("KV-3")
@pytest.mark.parametrize("way", WAYS)
async def test_a_signal_ahead_of_its_data_never_arrives(tmp_path: Path, way: Way) -> None:
    """The last layer's put is taken back until after the signal and the doorbell."""
    late = threading.Event()

    def without_last(transfer: str, layer: int, runs: Sequence[Run]) -> Iterable[tuple[int, Sequence[Run]]]:
        return [] if layer == 2 and not late.is_set() else [(layer, runs)]

    prompt = Machine("p", tmp_path, way=way, faults=Faults(put=without_last))
    token = Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        offer(await begin(prompt, token, "a", [1, 2], [5, 6]), [1, 2])
        reason = (await token.news.of("failed", "a"))[2]
        assert "never put" in reason or "received" in reason
        late.set()
        await token.news.of("fenced", "a")
        await whole(prompt, token, "b", [3, 4], [5, 6])


# ---- who gives up, and when


class Cancelling:
    """One transfer after the other, each cancelled at a moment of its own: 0 before the ticket came, 1 to 3
    before a layer, 4 before the seal, then ever later behind it."""

    def __init__(self, prompt: Machine, token: Machine, who: str) -> None:
        self.prompt, self.token, self.who = prompt, token, who
        self.rng = random.Random(5)

    def cancel(self, name: str) -> None:
        put = self.prompt.news.puts.get(name)
        if self.who == "revoke":
            self.token.kv.revoke(name, "cancelled")
        elif self.who == "abort" and put:
            put.abort("cancelled")
        else:
            self.prompt.kv.forget(name, "cancelled")

    async def run(self, name: str, moment: int) -> None:
        source, target = self.rng.sample(range(32), 6), self.rng.sample(range(32), 6)
        self.prompt.fill(source, name)
        self.prompt.kv.expect(name, deadline=soon())
        self.token.kv.arm(name, prompt_machine=self.prompt.address, blocks=target, deadline=soon())
        if moment > 0:
            await self.compute(name, source, moment)
        self.cancel(name)
        self.token.kv.revoke(name, "cancelled")
        self.prompt.kv.forget(name, "cancelled")
        await self.prompt.news.of("drained", name)
        await until(lambda: bool({"fenced", "arrived"} & set(self.token.news.kinds(name))))
        kinds = self.token.news.kinds(name)
        assert kinds in (["arrived"], ["fenced"], ["failed", "fenced"])
        assert self.prompt.news.kinds(name).count("drained") == 1
        assert kinds != ["arrived"] or self.token.holds(target, name)

    async def compute(self, name: str, source: list[int], moment: int) -> None:
        put = (await self.prompt.news.of("ticket", name))[2]
        put.begin(64)
        for layer in range(3):
            if moment == 1 + layer:
                self.cancel(name)
            put.layer(layer, 0, source)
            await self.let_others(self.rng.randrange(3))
        if moment == 4:
            self.cancel(name)
        put.seal(Token(7))
        await self.let_others(moment - 5)

    async def let_others(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)


@pytest.mark.fault("KV-6")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("who", ["revoke", "forget", "abort"])
async def test_cancelled_at_ten_moments_a_hundred_times_nothing_leaks(
    tmp_path: Path, way: Way, who: str
) -> None:
    prompt, token = (Machine(name, tmp_path, way=way, limits=PATIENT) for name in ("p", "t"))
    async with running(prompt, token):
        cancelling = Cancelling(prompt, token, who)
        for number in range(100):
            await cancelling.run(str(number), number % 10)
        await until(lambda: prompt.kv.open_transfers == 0)
        assert token.kv.open_transfers == token.kv.quarantined_blocks == 0
        await whole(prompt, token, "after", list(range(32)), list(range(32)))


@pytest.mark.fault("KV-3")
@pytest.mark.parametrize("way", WAYS)
async def test_a_put_beyond_the_deadline_is_worth_nothing(tmp_path: Path, way: Way) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        prompt.kv.expect("a", deadline=soon())
        token.kv.arm("a", prompt_machine=prompt.address, blocks=[5], deadline=soon(0.05))
        put = (await prompt.news.of("ticket", "a"))[2]
        assert "in time" in (await token.news.of("failed", "a"))[2]
        await prompt.news.of("drained", "a")
        offer(put, [1])  # harmless, and without effect
        await token.news.of("fenced", "a")
        assert prompt.news.kinds("a") == ["ticket", "failed", "drained"]
        assert not any(token.pool.memory)


@pytest.mark.parametrize("way", WAYS)
async def test_the_prompt_machines_deadline_is_told_to_the_token_machine(tmp_path: Path, way: Way) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        prompt.kv.expect("a", deadline=soon(0.1))
        token.kv.arm("a", prompt_machine=prompt.address, blocks=[5], deadline=soon())
        await prompt.news.of("failed", "a")
        assert "time is over" in (await token.news.of("failed", "a"))[2]
        await token.news.of("fenced", "a")
        await prompt.news.of("drained", "a")


async def test_a_ticket_that_never_comes(tmp_path: Path) -> None:
    prompt = Machine("p", tmp_path)
    async with running(prompt):
        prompt.kv.expect("a", deadline=soon(0.02))
        assert "no token machine" in (await prompt.news.of("failed", "a"))[2]
        await prompt.news.of("drained", "a")
        assert prompt.kv.open_transfers == 0


@pytest.mark.parametrize("way", WAYS)
async def test_a_prompt_that_never_comes(tmp_path: Path, way: Way) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        token.kv.arm("a", prompt_machine=prompt.address, blocks=[5], deadline=soon(0.1))
        await token.news.of("failed", "a")
        await token.news.of("fenced", "a")
        await until(lambda: prompt.kv.open_transfers == 0)
        assert prompt.news.all == []


@pytest.mark.parametrize("way", WAYS)
async def test_a_forgotten_transfer_declines_its_late_ticket(tmp_path: Path, way: Way) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        prompt.kv.expect("a", deadline=soon())
        prompt.kv.forget("a", "the client left")
        assert prompt.news.all == []  # never from inside the call
        await prompt.news.of("drained", "a")
        token.kv.arm("a", prompt_machine=prompt.address, blocks=[5], deadline=soon())
        assert "the client left" in (await token.news.of("failed", "a"))[2]
        await token.news.of("fenced", "a")
        assert prompt.news.kinds("a") == ["drained"]
        assert prompt.kv.open_transfers == 0


@pytest.mark.parametrize("way", WAYS)
async def test_an_engine_that_offers_nonsense_fails_its_transfer(tmp_path: Path, way: Way) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    nonsense: dict[str, Callable[[Any], None]] = {
        "layer 3": lambda put: put.layer(3, 0, [1]),
        "layer -1": lambda put: put.layer(-1, 0, [1]),
        "more than the ticket": lambda put: put.layer(0, 1, [1, 2]),
        "outside its pool": lambda put: put.layer(0, 0, [32]),
        "0 of 6 blocks": lambda put: put.seal(Token(1)),
        "twice": lambda put: [put.layer(0, 0, [1, 2]) for _ in range(4)],  # type: ignore[dict-item]
    }
    async with running(prompt, token):
        for why, do in nonsense.items():
            put = await begin(prompt, token, why, [1, 2], [5, 6])
            put.begin(64)
            do(put)
            put.seal(Token(7))
            assert why in (await token.news.of("failed", why))[2]
            await token.news.of("fenced", why)
            await prompt.news.of("failed", why)
            await prompt.news.of("drained", why)
        await whole(prompt, token, "fine", [1, 2], [5, 6])


# ---- a connection that breaks


@pytest.mark.fault("KV-5")
@pytest.mark.parametrize("way", WAYS)
async def test_a_broken_connection_fails_all_fences_all_and_is_made_anew(tmp_path: Path, way: Way) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        for cut in range(5):
            names = [f"{cut}-{number}" for number in range(4)]
            puts = [await begin(prompt, token, name, [i], [i + 8]) for i, name in enumerate(names)]
            for put in puts[:2]:
                put.begin(64)
                put.layer(0, 0, [1])
            prompt.connections[-1].close("the network went away")
            for name in names:
                await token.news.of("failed", name)
                await token.news.of("fenced", name)
                await prompt.news.of("failed", name)
                await prompt.news.of("drained", name)
            await whole(prompt, token, f"{cut}-after", [1, 2, 3], [8, 9, 10])
        assert token.kv.open_transfers == prompt.kv.open_transfers == 0
        assert len(prompt.connections) == 6


@pytest.mark.fault("KV-5")
async def test_a_bad_put_breaks_the_pair_and_nothing_arrives_by_it(tmp_path: Path) -> None:
    """A prompt machine that aims at blocks of another ticket is cut off; the victim's bytes stand."""

    def astray(transfer: str, layer: int, runs: Sequence[Run]) -> Iterable[tuple[int, Sequence[Run]]]:
        return [(layer, [run._replace(target=8) for run in runs])] if transfer == "bad" else [(layer, runs)]

    prompt = Machine("p", tmp_path, way="tcp", faults=Faults(put=astray))
    token = Machine("t", tmp_path, way="tcp")
    async with running(prompt, token):
        await whole(prompt, token, "good", [1], [8])
        offer(await begin(prompt, token, "bad", [2], [9]), [2])
        assert "block 8 is not armed" in (await token.news.of("failed", "bad"))[2]
        await token.news.of("fenced", "bad")
        await prompt.news.of("drained", "bad")
        assert token.holds([8], "good")
        await whole(prompt, token, "next", [3], [9])


# ---- quarantine


@pytest.mark.fault("KV-1")
async def test_a_full_quarantine_stops_tickets_until_the_writer_drains(tmp_path: Path) -> None:
    hold = Hold("a")
    prompt = Machine("p", tmp_path, way="shm", limits=HASTY, faults=Faults(put=hold.put))
    token = Machine("t", tmp_path, way="shm", limits=replace(HASTY, quarantine=4 / LAYOUT.blocks))
    async with running(prompt, token):
        offer(await begin(prompt, token, "a", [1, 2, 3, 4], [5, 6, 7, 8]), [1, 2, 3, 4])
        await hold.reached()
        token.kv.revoke("a", "the client left")
        await until(lambda: token.kv.is_quarantine_full)
        token.kv.arm("b", prompt_machine=prompt.address, blocks=[1], deadline=soon())
        assert token.news.all == []  # never from inside the call
        assert "quarantine" in (await token.news.of("failed", "b"))[2]
        await token.news.of("fenced", "b")
        hold.release()
        await token.news.of("fenced", "a")
        assert not token.kv.is_quarantine_full
        await whole(prompt, token, "c", [1, 2, 3, 4], [5, 6, 7, 8])


@pytest.mark.fault("KV-1")
async def test_shm_a_writer_that_lost_its_connection_frees_the_blocks_when_it_lets_go(tmp_path: Path) -> None:
    """The control connection is gone, so no DRAINED can come; the farewell on the lease does."""
    hold = Hold("a")
    prompt = Machine("p", tmp_path, way="shm", limits=HASTY, faults=Faults(put=hold.put))
    token = Machine("t", tmp_path, way="shm", limits=HASTY)
    async with running(prompt, token):
        offer(await begin(prompt, token, "a", [1, 2], [5, 6]), [1, 2])
        await hold.reached()
        prompt.connections[0].close("the network went away")
        await token.news.of("failed", "a")
        await until(lambda: token.kv.quarantined_blocks == 2)
        hold.release()
        await token.news.of("fenced", "a")
        await prompt.news.of("drained", "a")
        assert token.kv.quarantined_blocks == 0


@pytest.mark.parametrize("way", WAYS)
async def test_a_machine_that_stops_tells_its_peers(tmp_path: Path, way: Way) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    await prompt.start()
    await token.start()
    put = await begin(prompt, token, "a", [1], [5])
    put.begin(64)
    put.layer(0, 0, [1])
    await prompt.stop()
    await token.news.of("failed", "a")
    await token.news.of("fenced", "a")
    await prompt.news.of("drained", "a")
    await token.stop()


async def test_a_transfer_is_expected_or_armed_once(tmp_path: Path) -> None:
    prompt, token = Machine("p", tmp_path), Machine("t", tmp_path)
    async with running(prompt, token):
        await begin(prompt, token, "a", [1], [5])
        with pytest.raises(ValueError, match="expected already"):
            prompt.kv.expect("a", deadline=soon())
        with pytest.raises(ValueError, match="armed already"):
            token.kv.arm("a", prompt_machine=prompt.address, blocks=[6], deadline=soon())
        prompt.kv.forget("unknown", "nobody knows it")
        token.kv.revoke("unknown", "nobody knows it")
        token.kv.revoke("a", "enough")
        token.kv.revoke("a", "really")
        await token.news.of("fenced", "a")
        await prompt.news.of("drained", "a")
        assert token.news.kinds("a") == ["fenced"]


@pytest.mark.parametrize("way", WAYS)
async def test_two_machines_arming_one_transfer(tmp_path: Path, way: Way) -> None:
    """The first has it; the second is declined and its blocks come back."""
    prompt, one, two = (Machine(name, tmp_path, way=way) for name in ("p", "t1", "t2"))
    async with running(prompt, one, two):
        put = await begin(prompt, one, "a", [1], [5])
        two.kv.arm("a", prompt_machine=prompt.address, blocks=[5], deadline=soon())
        assert "armed already" in (await two.news.of("failed", "a"))[2]
        await two.news.of("fenced", "a")
        offer(put, [1])
        await one.news.of("arrived", "a")
