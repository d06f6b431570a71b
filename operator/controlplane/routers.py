"""What the routers themselves say: which machines they can use, how much was split, over what."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from runtime.config import Role

ASK_SECONDS = 2.0
ASKED = 8
"""Routers asked in one pass, so that a pass stays short."""


class RouterSilent(Exception):
    """A router did not answer; the message says which and how."""


@dataclass(frozen=True, slots=True)
class RouterReport:
    """`machines`: usable ones by role, the fewest that any router knows; None if a router is silent.
    `split`, `whole`: requests so far. `kv_bytes`: by transport."""

    machines: Mapping[Role, int] | None = None
    split: float = 0.0
    whole: float = 0.0
    kv_bytes: Mapping[str, float] = field(default_factory=dict)
    silent: str = ""

    @property
    def split_share(self) -> str | None:
        """Share of routed requests whose phases ran on two machines; None before the first."""
        total = self.split + self.whole
        return f"{100 * self.split / total:.0f}%" if total else None

    @property
    def transport(self) -> str | None:
        """The transport that carried most bytes; None before the first transfer."""
        return max(sorted(self.kv_bytes), key=lambda name: self.kv_bytes[name], default=None)


class Routers(Protocol):
    """A way to ask routers."""

    async def ask(self, addresses: Sequence[str]) -> RouterReport:
        """What the routers at these "host:port" addresses say together."""


class Unasked:
    """Where routers cannot be reached: their readiness has to do."""

    async def ask(self, addresses: Sequence[str]) -> RouterReport:
        return RouterReport(machines={})


class Scraped:
    """Asks over HTTP, by the metrics every router has."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, addresses: Sequence[str]) -> RouterReport:
        try:
            return combined(await asyncio.gather(*(self._one(each) for each in addresses[:ASKED])))
        except RouterSilent as error:
            return RouterReport(silent=str(error))

    async def _one(self, address: str) -> RouterReport:
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        try:
            async with self._session.get(f"http://{address}/metrics", timeout=timeout) as answer:
                return report_of(await answer.text())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise RouterSilent(f"the router at {address} does not answer: {error!r}") from error


def report_of(text: str) -> RouterReport:
    """The report in one router's metrics. Raises ValueError for what is none."""
    machines: dict[Role, int] = {"prompt": 0, "token": 0, "mixed": 0}
    routes = {"split": 0.0, "whole": 0.0}
    kv_bytes: dict[str, float] = {}
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            labels = sample.labels
            if sample.name == "splitwise_machines" and labels.get("state") == "ready":
                machines |= {role: int(sample.value) for role in machines if role == labels["role"]}
            elif sample.name == "splitwise_routes_total":
                routes[labels["mode"]] = sample.value
            elif sample.name == "splitwise_kv_bytes_total":
                transport = labels["transport"]
                kv_bytes[transport] = kv_bytes.get(transport, 0.0) + sample.value
    return RouterReport(machines, routes["split"], routes["whole"], kv_bytes)


def combined(reports: Iterable[RouterReport]) -> RouterReport:
    """Several routers as one: the fewest machines, the sum of the rest."""
    reports = list(reports)
    roles: tuple[Role, ...] = ("prompt", "token", "mixed")
    known = [report.machines or {} for report in reports]
    transports = sorted({name for report in reports for name in report.kv_bytes})
    return RouterReport(
        machines={role: min((each.get(role, 0) for each in known), default=0) for role in roles},
        split=sum(report.split for report in reports),
        whole=sum(report.whole for report in reports),
        kv_bytes={name: sum(report.kv_bytes.get(name, 0.0) for report in reports) for name in transports},
    )
