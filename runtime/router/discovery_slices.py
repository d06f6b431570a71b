"""Machines as the endpoints of a cluster's EndpointSlices.

A machine that is about to stop leaves its slice before it is told to, so the router gives it nothing new and
lets it finish. While the API server is away the last known set stays: machines do not vanish with it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import aiohttp

from runtime import log
from runtime.config import MachineAddress, SliceSettings
from runtime.kubernetes import Access

LIST_SECONDS = 30.0
WATCH_SECONDS = 300
SILENCE_SECONDS = 90.0
"""The server sends a bookmark at least each minute; a watch that is silent for longer is dead."""
FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 10.0
LINE_BYTES = 4 * 2**20
logger = log.logger("discovery")


class _Outdated(Exception):
    """The watch cannot go on from where it was; list again."""


class Slices:
    """A Discovery that follows EndpointSlices by their labels."""

    def __init__(self, settings: SliceSettings, access: Access) -> None:
        self._settings = settings
        self._access = access
        self._url = f"{access.server}/apis/discovery.k8s.io/v1/namespaces/{settings.namespace}/endpointslices"
        self._retry = FIRST_RETRY_SECONDS

    async def sets(self) -> AsyncIterator[Sequence[MachineAddress]]:
        last: Sequence[MachineAddress] | None = None
        connector = aiohttp.TCPConnector(ssl=self._access.tls() or True)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=LINE_BYTES) as session:
            while True:
                try:
                    async for slices in self._follow(session):
                        machines = addresses(slices, self._settings.port)
                        if machines != last:
                            last = machines
                            yield machines
                except _Outdated:
                    continue
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                    logger.warning("the API server does not tell of machines", error=repr(error))
                    await asyncio.sleep(self._retry)
                    self._retry = min(LAST_RETRY_SECONDS, self._retry * 2)

    async def _follow(self, session: aiohttp.ClientSession) -> AsyncIterator[Iterable[Mapping[str, Any]]]:
        """The slices, and again after each change, until the watch ends."""
        query = {"labelSelector": self._settings.selector}
        patience = aiohttp.ClientTimeout(total=LIST_SECONDS)
        async with session.get(
            self._url, params=query, headers=self._headers(), timeout=patience, raise_for_status=True
        ) as answer:
            listed = await answer.json()
        self._retry = FIRST_RETRY_SECONDS
        slices = {item["metadata"]["name"]: item for item in listed["items"]}
        yield slices.values()
        query |= {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        query["resourceVersion"] = listed["metadata"]["resourceVersion"]
        patience = aiohttp.ClientTimeout(total=None, sock_connect=LIST_SECONDS, sock_read=SILENCE_SECONDS)
        async with session.get(
            self._url, params=query, headers=self._headers(), timeout=patience, raise_for_status=True
        ) as answer:
            async for line in answer.content:
                if _taken(slices, json.loads(line)):
                    yield slices.values()

    def _headers(self) -> dict[str, str]:
        bearer = self._access.bearer()
        return {"Authorization": f"Bearer {bearer}"} if bearer else {}


def _taken(slices: dict[str, Any], event: Mapping[str, Any]) -> bool:
    """Take an event in; whether it changed a slice. Raises _Outdated."""
    match event["type"]:
        case "ADDED" | "MODIFIED":
            slices[event["object"]["metadata"]["name"]] = event["object"]
        case "DELETED":
            slices.pop(event["object"]["metadata"]["name"], None)
        case "BOOKMARK":
            return False
        case _:
            raise _Outdated
    return True


def addresses(slices: Iterable[Mapping[str, Any]], port: str) -> list[MachineAddress]:
    """The machines in these slices, by name: endpoints that are ready and stay, at the port of that name."""
    found: dict[str, str] = {}
    for item in slices:
        numbers = [int(each["port"]) for each in item.get("ports") or () if each.get("name") == port]
        for endpoint in item.get("endpoints") or () if numbers else ():
            name = (endpoint.get("targetRef") or {}).get("name")
            if name and _stays(endpoint.get("conditions") or {}):
                found[name] = _address(endpoint["addresses"][0], numbers[0])
    return [MachineAddress(name=name, address=found[name]) for name in sorted(found)]


def _stays(conditions: Mapping[str, Any]) -> bool:
    return conditions.get("ready") is not False and not conditions.get("terminating")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
