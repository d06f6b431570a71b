"""Asks local programs how they are: whether they are ready, and later whether they still answer."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from local.child import Process
from local.supervisor import Supervisor

Who = TypeVar("Who")
BEAT_SECONDS = 5.0
"""How often a running program is asked; it has so long to answer."""
MISSES = 6
"""After so many beats in a row without an answer a program hangs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said: nothing at all, or whether it is fine, and in which words."""

    came: bool
    fine: bool = False
    words: str = ""


async def ask(session: aiohttp.ClientSession, address: str, path: str) -> Answer:
    """One question, with the session's deadline."""
    try:
        async with session.get(f"http://{address}{path}") as response:
            return Answer(True, response.status == 200, (await response.text()).strip()[:200])
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        return Answer(False)


def asking(seconds: float) -> aiohttp.ClientSession:
    """A session whose questions have so many seconds."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds))


async def ask_all(
    session: aiohttp.ClientSession, addresses: Mapping[Who, str], path: str
) -> dict[Who, Answer]:
    """Everybody at once."""
    answers = await asyncio.gather(*(ask(session, address, path) for address in addresses.values()))
    return dict(zip(addresses, answers, strict=True))


async def end_those_that_hang(supervisor: Supervisor, *, beat: float = BEAT_SECONDS) -> None:
    """Until cancelled: kill a program that runs but no longer answers; the supervisor starts it again.

    Beats are counted, not seconds, so that a computer that slept does not make everybody late.
    """
    missed: dict[Process, int] = {}
    async with asking(beat) as session:
        while True:
            running = [each for each in supervisor.watched.values() if each.state == "running"]
            asked = {each.process: each.program.observe for each in running}
            answers, _ = await asyncio.gather(ask_all(session, asked, "/healthz"), asyncio.sleep(beat))
            missed = {process: missed.get(process, 0) + 1 for process in asked if not answers[process].came}
            for each in running:
                if missed.get(each.process, 0) == MISSES:
                    supervisor.told(
                        f"{each.program.name} has not answered for {MISSES * beat:g} s; ending it"
                    )
                    each.kill()
