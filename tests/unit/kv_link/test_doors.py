"""Nobody without the secret of a door gets through it, and nobody twice."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from runtime.kv_link.doors import Doors
from runtime.kv_link.ledger import Ledger
from runtime.kv_link.messages import Offer
from runtime.kv_link.pool import Pool
from runtime.kv_link.preface import check_welcome, preface
from runtime.kv_link.transport import Place, Transport, TransportError
from runtime.kv_link.transports import TRANSPORTS
from tests.unit.kv_link.machines import LAYOUT, QUICK

pytestmark = pytest.mark.parametrize("way", ["shm", "tcp"])


@dataclass
class House:
    """Doors, and who came in."""

    doors: Doors
    way: Transport
    guests: list[socket.socket] = field(default_factory=list)
    sorry: str = ""

    def offer(self) -> Offer:
        return self.doors.announce(self.welcome, slots=4096)

    def welcome(self, transport: Transport, sock: socket.socket) -> None:
        if self.sorry:
            raise TransportError(self.sorry)
        assert transport is self.way
        self.guests.append(sock)
        sock.send(b"\x00")

    async def knock(self, said: bytes) -> bytes:
        """What a caller who says this hears back; b"" if it is hung up on."""
        sock = await asyncio.to_thread(self.way.connect, self.doors.ways[self.way.name], 5.0)
        with sock:
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(5):
                await loop.sock_sendall(sock, said)
                try:
                    return await loop.sock_recv(sock, 512)
                except ConnectionResetError:
                    return b""


@pytest.fixture
async def house(way: str) -> AsyncIterator[House]:
    pool, ledger = Pool.shared(LAYOUT), Ledger.create(layers=3, blocks=32)
    doors = Doors(Place("t", pool, ledger, "127.0.0.1", None), replace(QUICK, open_within=0.3))
    doors.start([TRANSPORTS[way]])
    house = House(doors, TRANSPORTS[way])
    yield house
    await doors.close()
    for guest in house.guests:
        guest.close()
    ledger.close()
    pool.close()


async def test_the_secret_opens_its_door_once(house: House) -> None:
    offer = house.offer()
    assert await house.knock(preface(offer.door, offer.secret)) == b"\x00"
    assert await house.knock(preface(offer.door, offer.secret)) == b""
    assert len(house.guests) == 1
    assert house.doors.turned_away == 1


async def test_offers_have_secrets_of_their_own(house: House) -> None:
    one, other = house.offer(), house.offer()
    assert len(one.secret) == 16
    assert one.secret != other.secret
    assert await house.knock(preface(one.door, other.secret)) == b""
    assert await house.knock(preface(other.door, one.secret)) == b""
    assert house.guests == []


@pytest.mark.parametrize("wrong", ["secret", "door", "magic"])
async def test_a_guess_gets_nothing_and_harms_nobody(house: House, wrong: str) -> None:
    offer = house.offer()
    guess = {
        "secret": preface(offer.door, bytes(16)),
        "door": preface(offer.door + 1, offer.secret),
        "magic": b"XXXX" + preface(offer.door, offer.secret)[4:],
    }[wrong]
    assert await house.knock(guess) == b""
    assert house.guests == []
    assert await house.knock(preface(offer.door, offer.secret)) == b"\x00"


async def test_a_locked_door_stays_shut(house: House) -> None:
    offer = house.offer()
    house.doors.lock(offer.door)
    assert await house.knock(preface(offer.door, offer.secret)) == b""
    assert house.guests == []


async def test_a_caller_who_says_nothing_is_hung_up_on(house: House) -> None:
    house.offer()
    assert await house.knock(b"SWKV") == b""  # after open_within, not after the test's patience
    assert house.doors.turned_away == 1


async def test_a_way_that_cannot_be_had_is_told_and_another_may_be_tried(house: House) -> None:
    offer = house.offer()
    house.sorry = "not like this"
    with pytest.raises(TransportError, match="not like this"):
        check_welcome(await house.knock(preface(offer.door, offer.secret)))
    house.sorry = ""
    assert await house.knock(preface(offer.door, offer.secret)) == b"\x00"


async def test_a_crowd_at_the_door_is_bounded(house: House) -> None:
    """Callers that say nothing take no more than so many places, and those only for a while."""
    offer = house.offer()
    address = house.doors.ways[house.way.name]
    crowd = [await asyncio.to_thread(house.way.connect, address, 5.0) for _ in range(100)]
    async with asyncio.timeout(5):
        while house.doors.turned_away < 60:  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0.01)
    for sock in crowd:
        sock.close()
    assert house.doors.turned_away < 100
    assert await house.knock(preface(offer.door, offer.secret)) == b"\x00"


async def test_doors_close_on_those_who_still_stand_there(house: House) -> None:
    """Whether they were greeted, not yet heard, or not yet taken in at all."""
    address = house.doors.ways[house.way.name]
    crowd = []
    for _ in range(6):
        crowd.append(await asyncio.to_thread(house.way.connect, address, 5.0))
    before = len(os.listdir("/proc/self/fd"))
    await house.doors.close()
    assert len(os.listdir("/proc/self/fd")) < before
    for sock in crowd:
        try:
            assert sock.recv(1) == b""
        except ConnectionResetError:
            continue
        finally:
            sock.close()


async def test_a_want_of_descriptors_passes(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    offer, failures = house.offer(), iter([OSError(24, "Too many open files")])
    real = socket.socket.accept

    def accept(listener: socket.socket) -> Any:
        for failure in failures:
            raise failure
        return real(listener)

    monkeypatch.setattr(socket.socket, "accept", accept)
    assert await house.knock(preface(offer.door, offer.secret)) == b"\x00"


async def test_closed_doors_leave_nothing(house: House) -> None:
    offer, address = house.offer(), house.doors.ways[house.way.name]
    await house.doors.close()
    with pytest.raises(OSError):
        house.way.connect(address, 1.0)
    assert offer.door > 0
