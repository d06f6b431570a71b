"""Startup, readiness and liveness probes of a local process.

One departure from a kubelet: until a probe first succeeds it is tried several times a second, and
`initialDelaySeconds` is not waited for, so a test sees a server ready as soon as it is. From then on
`periodSeconds` and `failureThreshold` mean what they say.
"""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable

import aiohttp

from cluster.client import Object

EAGER_SECONDS, EAGER_COMMAND_SECONDS = 0.1, 0.5
RunCommand = Callable[[list[str], float], Awaitable[bool]]


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Where a container's probes go: its pod's address, its named ports, its commands."""

    ip: str
    ports: dict[str, int]
    run: RunCommand
    http: aiohttp.ClientSession

    def port(self, named: str | int) -> int:
        return named if isinstance(named, int) else self.ports[named]


async def check(probe: Object, target: Target) -> bool:
    """One try of a probe (or of a hook's action, which is written alike)."""
    seconds = float(probe.get("timeoutSeconds", 1))
    if command := probe.get("exec"):
        return await target.run(command["command"], seconds)
    try:
        async with asyncio.timeout(seconds):
            if request := probe.get("httpGet"):
                return await _get(request, target)
            connect = probe["tcpSocket"]
            host = connect.get("host", target.ip)
            _, writer = await asyncio.open_connection(host, target.port(connect["port"]))
            writer.close()
            return True
    except (TimeoutError, OSError, aiohttp.ClientError):
        return False


async def _get(request: Object, target: Target) -> bool:
    scheme = request.get("scheme", "HTTP").lower()
    host, port = request.get("host", target.ip), target.port(request["port"])
    headers = {header["name"]: header["value"] for header in request.get("httpHeaders", [])}
    url = f"{scheme}://{host}:{port}{request.get('path', '/')}"
    async with target.http.get(url, headers=headers, allow_redirects=False, ssl=False) as answer:
        return 200 <= answer.status < 400


def _period(probe: Object) -> float:
    return float(probe.get("periodSeconds", 10))


async def first_success(probe: Object, target: Target) -> None:
    """Tries it eagerly until it succeeds."""
    pause = EAGER_COMMAND_SECONDS if "exec" in probe else EAGER_SECONDS
    while True:
        if await check(probe, target):
            return
        await asyncio.sleep(pause)


def startup_seconds(probe: Object) -> float:
    """How long a startup probe may fail before its container is killed."""
    tries = int(probe.get("failureThreshold", 3))
    return float(probe.get("initialDelaySeconds", 0)) + tries * _period(probe)


async def flips(probe: Object, target: Target) -> AsyncGenerator[bool, None]:
    """After a first success: each new verdict, once the thresholds say that it flipped."""
    good, against = True, 0
    while True:
        await asyncio.sleep(_period(probe))
        against = 0 if await check(probe, target) == good else against + 1
        needed = int(probe.get("failureThreshold", 3) if good else probe.get("successThreshold", 1))
        if against >= needed:
            good, against = not good, 0
            yield good
