"""Where the router learns which machines there are.

A discovery yields the whole current set whenever it changes; the fleet connects to what is new and lets go
of what is gone. A file lists machines that never change; in Kubernetes the set follows EndpointSlices.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from runtime.config import MachineAddress


class Discovery(Protocol):
    """A source of machine sets."""

    def sets(self) -> AsyncIterator[Sequence[MachineAddress]]:
        """Yields the current set, then each new one; never ends."""


class Listed:
    """Machines named in the settings."""

    def __init__(self, machines: Sequence[MachineAddress]) -> None:
        self._machines = machines

    async def sets(self) -> AsyncIterator[Sequence[MachineAddress]]:
        yield self._machines
        await asyncio.Event().wait()
