"""What a collection looks like now, and every change from then on; and waiting for one.

A watch breaks when the API server restarts or forgets an old version. `follow` then lists again and
reports what was missed, so its reader sees each object's latest state and each disappearance.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable

import yaml

from cluster.client import TRANSIENT, ApiError, Client, Object

RETRY_SECONDS = 0.2
POLL_SECONDS = 0.05
RETRIED_STATUSES = {403, 409, 410, 429}  # 403: a restarted API server has no roles for a moment
WAIT_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """An object as it is now, or, if `gone`, as it last was."""

    object: Object
    gone: bool = False


class WaitFailed(AssertionError):
    """What a test waited for did not come; the message shows what was there instead."""


def retried(error: Exception) -> bool:
    """True for what a restart of the API server explains."""
    if isinstance(error, ApiError):
        return error.status >= 500 or error.status in RETRIED_STATUSES
    return isinstance(error, TRANSIENT)


async def follow(
    client: Client,
    resource: str,
    *,
    namespace: str | None = None,
    name: str = "",
    selector: str = "",
    fields: str = "",
) -> AsyncGenerator[Change, None]:
    """Every object, then every change, for ever. An error that will not pass is raised."""
    known: dict[str, Object] = {}
    query = {"labelSelector": selector} if selector else {}
    if chosen := f"metadata.name={name}" if name else fields:
        query["fieldSelector"] = chosen
    while True:
        try:
            path = await client.path(resource, None, namespace)
            listed = await client.request("GET", path, query=query)
            for change in _missed(known, listed["items"]):
                yield change
            start = {"resourceVersion": listed["metadata"]["resourceVersion"]}
            async with contextlib.aclosing(client.watch(path, query | start)) as events:
                async for event in events:
                    if event["type"] == "ERROR":
                        break
                    yield _noted(known, event["object"], gone=event["type"] == "DELETED")
        except (ApiError, *TRANSIENT) as error:
            if not retried(error):
                raise
        await asyncio.sleep(RETRY_SECONDS)


def _noted(known: dict[str, Object], item: Object, *, gone: bool) -> Change:
    uid = item["metadata"]["uid"]
    known[uid] = item
    if gone:
        del known[uid]
    return Change(item, gone)


def _missed(known: dict[str, Object], listed: list[Object]) -> list[Change]:
    """What a fresh list says, against what was known."""
    present = {item["metadata"]["uid"] for item in listed}
    lost = [item for uid, item in known.items() if uid not in present]
    changes = [_noted(known, item, gone=True) for item in lost]
    return changes + [_noted(known, item, gone=False) for item in listed]


async def wait_for(
    client: Client,
    resource: str,
    name: str,
    is_so: Callable[[Object], bool],
    *,
    seconds: float = WAIT_SECONDS,
    namespace: str | None = None,
) -> Object:
    """The object, once `is_so` holds for it; it need not exist yet. WaitFailed after `seconds`."""
    last: Object | None = None
    try:
        changes = follow(client, resource, name=name, namespace=namespace)
        async with asyncio.timeout(seconds), contextlib.aclosing(changes):
            async for change in changes:
                last = None if change.gone else change.object
                if last is not None and is_so(last):
                    return last
    except TimeoutError:
        events = await events_of(client, name, namespace)
        raise WaitFailed(_story(resource, name, seconds, last, events)) from None
    raise AssertionError("follow() never ends")


async def wait_gone(
    client: Client,
    resource: str,
    name: str,
    *,
    seconds: float = WAIT_SECONDS,
    namespace: str | None = None,
) -> None:
    """Until no object of that name exists. WaitFailed after `seconds`."""
    last: Object | None = None
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        try:
            last = await client.get(resource, name, namespace=namespace)
        except (ApiError, *TRANSIENT) as error:
            if isinstance(error, ApiError) and error.status == 404:
                return
            if not retried(error):
                raise
        await asyncio.sleep(POLL_SECONDS)
    events = await events_of(client, name, namespace)
    raise WaitFailed(_story(resource, name, seconds, last, events))


async def until(holds: Callable[[], bool], *, seconds: float = WAIT_SECONDS) -> None:
    """For what the API does not tell, such as a log: looks often. TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            if holds():
                return
            await asyncio.sleep(POLL_SECONDS)


async def events_of(client: Client, name: str, namespace: str | None = None) -> list[str]:
    """Events about objects called `name`: "FailedScheduling: 0/1 nodes are available"."""
    try:
        found = await client.list("events", namespace=namespace)
    except (ApiError, *TRANSIENT):
        return []
    about = [event for event in found if event["involvedObject"].get("name") == name]
    return [f"{event.get('reason')}: {event.get('message')}" for event in about]


def _story(resource: str, name: str, seconds: float, last: Object | None, events: list[str]) -> str:
    head = f"{resource} {name}: not as expected after {seconds:.0f} s; "
    if last is None:
        return head + "it does not exist"
    metadata = {key: value for key, value in last["metadata"].items() if key != "managedFields"}
    shown = {"metadata": metadata, "status": last.get("status"), "events": events}
    return head + "it is\n" + yaml.safe_dump(shown, sort_keys=False)
