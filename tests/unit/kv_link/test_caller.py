"""A prompt machine trusts no token machine's word further than it can check it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from runtime.kv_link.hello import greeting
from runtime.kv_link.messages import Abandon, Armed, Broken, Drained, Offer, PromptMessage, Revoke
from runtime.link import Connection, Hello, LinkError, dial, host_id
from tests.unit.kv_link.machines import LAYOUT, WITHIN, Machine, running, soon

PEER = structs.replace(LAYOUT, blocks=8)


class Impostor:
    """Calls a prompt machine and says what it likes."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.connection: Connection | None = None

    def received(self, connection: Connection, message: Any) -> None:
        self.heard.put_nowait(message)

    def closed(self, connection: Connection, reason: str) -> None:
        self.heard.put_nowait(reason)

    async def call(self, prompt: Machine, body: Any = None) -> None:
        said = msgspec.msgpack.encode(body or greeting(PEER, "auto"))
        hello = Hello("machine", "impostor", "1", host_id(), msgspec.Raw(said))
        self.connection = await dial(
            prompt.address, hello=hello, secret=b"s" * 32, inbound=PromptMessage, handler=self
        )

    def say(self, message: Any) -> None:
        assert self.connection
        self.connection.send(message)

    async def next(self) -> Any:
        return await asyncio.wait_for(self.heard.get(), WITHIN)


@pytest.fixture
async def prompt(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine("p", tmp_path)
    async with running(machine):
        yield machine


@pytest.fixture
async def impostor(prompt: Machine) -> AsyncIterator[Impostor]:
    made = Impostor()
    await made.call(prompt)
    yield made
    assert made.connection
    made.connection.close("the test is over")
    await asyncio.wait_for(made.connection.wait_closed(), WITHIN)


@pytest.fixture
def silent_door() -> Iterator[str]:
    """An address where the kernel takes calls and nobody answers them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def armed(**changes: Any) -> Armed:
    ticket = Armed(transfer="a", epoch=1, slot=0, blocks=(0, 7), seconds=30.0)
    return structs.replace(ticket, **changes)


def offer(address: str) -> Offer:
    return Offer(door=1, secret=b"s" * 16, ways={"tcp": address}, slots=4)


@pytest.mark.fault("KV-4")
@pytest.mark.parametrize(
    ("ticket", "why"),
    [
        (armed(blocks=(0, 8)), "outside the peer's pool of 8"),
        (armed(blocks=(-1,)), "outside"),
        (armed(blocks=(3, 3)), "once"),
        (armed(blocks=()), "needs blocks"),
        (armed(slot=4), "slot"),
        (armed(slot=-1), "slot"),
    ],
)
async def test_a_ticket_that_makes_no_sense_is_declined(
    prompt: Machine, impostor: Impostor, silent_door: str, ticket: Armed, why: str
) -> None:
    prompt.kv.expect("a", deadline=soon())
    impostor.say(offer(silent_door))
    impostor.say(ticket)
    declined = await impostor.next()
    assert isinstance(declined, Abandon)
    assert why in declined.reason
    assert await impostor.next() == Drained(1)
    assert prompt.news.all == []


async def test_a_ticket_before_any_offer_is_declined(prompt: Machine, impostor: Impostor) -> None:
    prompt.kv.expect("a", deadline=soon())
    impostor.say(armed())
    assert "before the offer" in (await impostor.next()).reason
    assert await impostor.next() == Drained(1)


async def test_a_second_offer_ends_the_connection(
    prompt: Machine, impostor: Impostor, silent_door: str
) -> None:
    impostor.say(offer(silent_door))
    impostor.say(offer(silent_door))
    assert isinstance(await impostor.next(), str)


async def test_an_epoch_used_twice_is_declined(prompt: Machine, impostor: Impostor, silent_door: str) -> None:
    prompt.kv.expect("a", deadline=soon())
    prompt.kv.expect("b", deadline=soon())
    impostor.say(offer(silent_door))
    impostor.say(armed())
    impostor.say(armed(transfer="b"))
    assert "epoch" in (await impostor.next()).reason
    assert prompt.news.find("ticket", "b") is None


async def test_what_was_never_armed_is_drained(prompt: Machine, impostor: Impostor) -> None:
    impostor.say(Revoke(77, "who knows"))
    assert await impostor.next() == Drained(77)


async def test_an_early_ticket_that_is_revoked_is_gone(
    prompt: Machine, impostor: Impostor, silent_door: str
) -> None:
    impostor.say(offer(silent_door))
    impostor.say(armed())
    impostor.say(armed(transfer="b", epoch=2))
    impostor.say(Revoke(1, "changed my mind"))
    assert await impostor.next() == Drained(1)
    assert prompt.kv.open_transfers == 1
    prompt.kv.expect("a", deadline=soon(0.02))
    assert "no token machine" in (await prompt.news.of("failed", "a"))[2]


@pytest.mark.parametrize("early", [True, False])
async def test_a_tickets_own_end_holds_without_a_word_from_its_machine(
    prompt: Machine, impostor: Impostor, silent_door: str, early: bool
) -> None:
    """A token machine that hangs revokes nothing: its ticket ends by the seconds it was given."""
    impostor.say(offer(silent_door))
    if early:
        impostor.say(armed(seconds=0.3))
        impostor.say(Revoke(99, "to hear that the ticket was taken in"))
        assert await impostor.next() == Drained(99)
        prompt.kv.expect("a", deadline=soon(60))
    else:
        prompt.kv.expect("a", deadline=soon(60))
        impostor.say(armed(seconds=0.3))
    assert "time is over" in (await prompt.news.of("failed", "a"))[2]
    await prompt.news.of("drained", "a")
    assert isinstance(await impostor.next(), Abandon)


async def test_a_way_that_leads_nowhere_is_told_and_fails_its_tickets(
    prompt: Machine, impostor: Impostor
) -> None:
    prompt.kv.expect("a", deadline=soon())
    impostor.say(armed(epoch=5))
    assert isinstance(await impostor.next(), Abandon)
    assert await impostor.next() == Drained(5)
    prompt.kv.expect("b", deadline=soon())
    impostor.say(offer("127.0.0.1:1"))
    impostor.say(armed(transfer="b", epoch=6))
    while not isinstance(await impostor.next(), Broken):
        pass  # it may have been taken in before the way was tried, and is declined then
    assert "tcp: " in (await prompt.news.of("failed", "b"))[2]
    await prompt.news.of("drained", "b")


async def test_an_offer_without_a_way_for_us_is_told(prompt: Machine, impostor: Impostor) -> None:
    impostor.say(Offer(1, b"s" * 16, {"carrier pigeon": "loft"}, 4))
    broken = await impostor.next()
    assert isinstance(broken, Broken)
    assert "no KV data connection" in broken.reason


async def test_a_misfit_is_refused_at_the_call(prompt: Machine) -> None:
    with pytest.raises(LinkError, match="head_dim: 4 here, 5 at the peer"):
        await Impostor().call(prompt, greeting(structs.replace(PEER, head_dim=5), "auto"))
