"""The machines that the router knows, and its one connection to each.

Discovery says which machines there are; the fleet keeps dialling those it has no connection to. A machine
that discovery drops, or that says it is draining, gets nothing new but finishes what it has.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from runtime import log
from runtime.config import MachineAddress
from runtime.link import Hello, Keyring, LinkError, Pulse, dial
from runtime.policy.work import MachineLoad
from runtime.router.books import Books
from runtime.router.discovery import Discovery
from runtime.router.machine import Machine, Unfit
from runtime.wire import MachineInfo, Step

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0
_decode_info = msgspec.msgpack.Decoder(MachineInfo).decode
logger = log.logger("fleet")


@dataclass(frozen=True, slots=True)
class Caller:
    """What it takes to call a machine, and what its machines must serve."""

    hello: Hello
    secret: Keyring | bytes
    pulse: Pulse
    model: str
    vocabulary: int

    def check(self, info: MachineInfo) -> None:
        """Raises Unfit if a machine serves something else than we tokenize for."""
        if info.model != self.model:
            raise Unfit(f"it serves the model {info.model!r}, and {self.model!r} is wanted")
        if info.vocabulary < self.vocabulary:
            raise Unfit(f"its model has {info.vocabulary} token ids, and the tokenizer {self.vocabulary}")


class Fleet:
    """`on_change` is called whenever a machine becomes usable, and only then."""

    def __init__(
        self, caller: Caller, discovery: Discovery, books: Books, on_change: Callable[[], None]
    ) -> None:
        self.machines: dict[str, Machine] = {}
        self._caller = caller
        self._discovery = discovery
        self._books = books
        self._on_change = on_change
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._leaving: list[Machine] = []

    async def run(self) -> None:
        """Follow the discovery until cancelled; then let go of every machine."""
        try:
            async for addresses in self._discovery.sets():
                self._follow(addresses)
        finally:
            for keeper in self._keepers.values():
                keeper.cancel()
            for machine in (*self.machines.values(), *self._leaving):
                machine.disconnect("the router ends")
            await asyncio.gather(*self._keepers.values(), return_exceptions=True)

    def loads(self) -> list[MachineLoad]:
        """The machines that may be given work, as the books have them."""
        return [
            self._books.load(machine.name, machine.info.role, machine.info.revision, machine.kv_tokens)
            for machine in self.machines.values()
            if machine.usable
        ]

    def context_tokens(self) -> int:
        """The longest prompt and output that some machine can hold; 0 while none is known. Prompt machines
        hold prompts only, so they count where there is nothing else."""
        usable = [machine for machine in self.machines.values() if machine.usable]
        ends = [machine for machine in usable if machine.info.role != "prompt"] or usable
        contexts = (
            min(machine.info.context_tokens, machine.kv_tokens or machine.info.context_tokens)
            for machine in ends
        )
        return max(contexts, default=0)

    # ---- the set of machines

    def _follow(self, addresses: Sequence[MachineAddress]) -> None:
        wanted = {address.name: address for address in addresses}
        for name, machine in tuple(self.machines.items()):
            if name not in wanted or wanted[name].address != machine.address:
                self._retire(machine)
        for name, address in wanted.items():
            if name not in self.machines:
                machine = self.machines[name] = Machine(name, address.address)
                self._keepers[name] = asyncio.create_task(self._keep(machine), name=f"keep {name}")

    def _retire(self, machine: Machine) -> None:
        """Nothing new for it; its connection ends with its last leg."""
        del self.machines[machine.name]
        self._keepers.pop(machine.name).cancel()
        machine.retire()
        self._leaving = [leaving for leaving in (*self._leaving, machine) if leaving.is_connected]
        self._books.forget(machine.name)

    # ---- one machine

    async def _keep(self, machine: Machine) -> None:
        """Keep a connection to a machine for as long as it is wanted."""
        delay, told = FIRST_RETRY_SECONDS, ""
        while True:
            try:
                await self._connect(machine)
                delay, told = FIRST_RETRY_SECONDS, ""
                logger.warning("machine lost", machine=machine.name, reason=await machine.lost())
            except (LinkError, Unfit) as error:
                if str(error) != told:  # once for each reason, not for each try
                    logger.warning("machine not connected", machine=machine.name, reason=str(error))
                told = str(error)
            except Exception:  # ours; the machine is tried again all the same
                logger.exception("a machine could not be kept", machine=machine.name)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, LAST_RETRY_SECONDS)

    async def _connect(self, machine: Machine) -> None:
        caller = self._caller
        connection = await dial(
            machine.address,
            hello=caller.hello,
            secret=caller.secret,
            inbound=Step,
            handler=machine,
            pulse=caller.pulse,
        )
        try:
            info = _decode_info(connection.peer.body)
            caller.check(info)
        except (msgspec.MsgspecError, Unfit) as error:
            connection.close(str(error))
            raise Unfit(f"{machine.address}: {error}") from error
        machine.connected(connection, info)
        logger.info("machine connected", machine=machine.name, role=info.role, revision=info.revision)
        self._on_change()
