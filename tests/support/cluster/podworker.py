"""One pod on a pretend node, from its arrival to its end."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import pathlib
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from cluster.bell import Bell
from cluster.client import STRATEGIC, TRANSIENT, ApiError, Client, Object
from cluster.container import Container, Run, StartRefused
from cluster.follow import RETRY_SECONDS, retried
from cluster.podstatus import ContainerState, pod_status, timestamp
from cluster.pretendrun import PretendRun
from cluster.processrun import ProcessRun
from cluster.sandbox import Sandbox
from cluster.steering import Script, script

REFRESH_SECONDS = 1.0
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """What a pod gets from its node. `annotations` and `may_report` are asked anew each time."""

    client: Client
    http: aiohttp.ClientSession
    folder: pathlib.Path  # of all pods
    host_ip: str
    annotations: Callable[[], dict[str, str]]
    reachable: asyncio.Event
    why_no_process: str | None


async def persist(call: Callable[[], Awaitable[Any]]) -> bool:
    """Repeats a write while the API server is away; False if the object is gone or replaced."""
    while True:
        try:
            await call()
            return True
        except (ApiError, *TRANSIENT) as error:
            if isinstance(error, ApiError) and error.status in (404, 409):
                return False
            if not retried(error):
                raise
        await asyncio.sleep(RETRY_SECONDS)


class PodWorker:
    """Runs a pod's containers and reports on them. `update` brings news of the pod."""

    def __init__(self, pod: Object, ip: str, place: Place) -> None:
        self.pod = pod
        self.ip = ip
        self._place = place
        self._bell = Bell()
        self._deleted = asyncio.Event()
        self._dirty = asyncio.Event()
        self._containers = [self._container(*entry) for entry in _entries(pod)]
        metadata = pod["metadata"]
        self._home = place.folder / f"{metadata['namespace']}_{metadata['name']}"
        folder = self._home / metadata["uid"]
        self._sandbox = Sandbox(pod, folder, ip=ip, host_ip=place.host_ip)
        self._prepared = False
        self._over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        self.update(pod)

    def update(self, pod: Object) -> None:
        """Takes in the pod's latest state, or its node's new annotations."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._deleted.set()
        self._dirty.set()  # a readiness gate may have opened
        self._bell.ring()

    async def run(self) -> None:
        """Until the pod is deleted. Cancelling it is the sudden end of the machine."""
        background = [asyncio.create_task(work) for work in (self._report(), self._refresh())]
        try:
            await self._until_stopped()
            await self._send_status()
            await persist(lambda: confirm_deletion(self._place.client, self.pod))
        finally:
            for task in background:
                task.cancel()
            for container in self._containers:
                container.kill()
            shutil.rmtree(self._sandbox.folder, ignore_errors=True)

    def _container(self, spec: Object, init: bool, before: Object | None) -> Container:
        sidecar = init and spec.get("restartPolicy") == "Always"
        state = ContainerState(spec["name"], spec["image"], init=init, sidecar=sidecar)
        if before is not None:  # it ran before its node or its kubelet was lost
            state.restarts = before["restartCount"] + (0 if "waiting" in before["state"] else 1)
            state.last_state = before["lastState"]
        policy = self.pod["spec"].get("restartPolicy", "Always")
        if init and policy == "Always":
            policy = "OnFailure"
        return Container(spec, state, policy=policy, changed=self._dirty.set)

    def _script(self) -> Script:
        return script(self._place.annotations(), self.pod["metadata"].get("annotations", {}))

    def _init_script(self) -> Script:
        """An init container that behaves well is done at once."""
        said = self._script()
        return dataclasses.replace(said, exit_code=said.exit_code or 0)

    async def _until_stopped(self) -> None:
        """Lives; and when the pod is deleted, ends all containers within its grace period."""
        living = asyncio.create_task(self._live())
        try:
            await self._deleted.wait()
            grace = float(self.pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            await asyncio.gather(*(container.stop(grace) for container in self._containers))
            await living
        finally:
            living.cancel()

    async def _live(self) -> None:
        """The init containers one by one, then the others together; all to their last exit."""
        if self._over:
            return
        tasks = []
        for container in self._containers:
            if not container.state.init or container.state.sidecar:
                tasks.append(asyncio.create_task(container.live(self._start)))
            elif await container.live(functools.partial(self._start, ends=True)) != 0:
                return
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _start(self, spec: Object, *, ends: bool = False) -> Run:
        script = self._script()
        if script.waiting:
            raise StartRefused(script.waiting, "as told by an annotation")
        if not script.process:
            return PretendRun(self._init_script if ends else self._script, self._bell)
        if self._place.why_no_process:
            raise StartRefused("CreateContainerError", self._place.why_no_process)
        if not self._prepared:
            await self._prepare()
        image = spec["image"]
        found = (words for part, words in script.entrypoints.items() if part in image)
        output = self._home / f"{spec['name']}.log"
        return await ProcessRun.start(spec, self._sandbox, next(found, []), log=output, http=self._place.http)

    async def _prepare(self) -> None:
        try:
            await self._sandbox.refresh(self._place.client)
        except (ApiError, *TRANSIENT) as error:
            raise StartRefused("ContainerCreating", str(error)) from error
        self._prepared = True

    async def _refresh(self) -> None:
        """Keeps mounted files up to date, as a kubelet does (it takes a minute)."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            if self._prepared:
                with contextlib.suppress(StartRefused):
                    await self._prepare()

    async def _report(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._send_status()

    async def _send_status(self) -> None:
        await self._place.reachable.wait()
        if self._over:
            return
        states = [container.state for container in self._containers]
        host_ip = self._place.host_ip
        now = timestamp()
        status = pod_status(self.pod, states, ip=self.ip, host_ip=host_ip, now=now)
        if not _says(self.pod.get("status", {}), status):
            await persist(lambda: self._patch_status(status))

    async def _patch_status(self, status: Object) -> None:
        metadata = self.pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        answer = await self._place.client.patch(
            "pods",
            metadata["name"],
            body,
            subresource="status",
            media=STRATEGIC,
            namespace=metadata["namespace"],
        )
        self.pod["status"] = answer["status"]


async def confirm_deletion(client: Client, pod: Object) -> None:
    """Removes the pod's object, which a deletion only marks while the pod may still run."""
    metadata = pod["metadata"]
    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
    name, namespace = metadata["name"], metadata["namespace"]
    await client.delete("pods", name, options=options, namespace=namespace)


def _entries(pod: Object) -> list[tuple[Object, bool, Object | None]]:
    """Each container's spec, whether it is an init container, and its last known status."""
    spec, status = pod["spec"], pod.get("status", {})
    known = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
    before = {entry["name"]: entry for entry in known}
    init = [(c, True, before.get(c["name"])) for c in spec.get("initContainers", [])]
    return init + [(c, False, before.get(c["name"])) for c in spec["containers"]]


def _says(present: Any, wanted: Any) -> bool:
    """True if `present` already says everything in `wanted`; None means absent."""
    if isinstance(wanted, dict):
        if not isinstance(present, dict):
            return False
        return all(_says(present.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        if len(wanted) == 0:
            return not present
        return isinstance(present, list) and all(
            any(_says(have, want) for have in present) for want in wanted
        )
    return bool(present == wanted) or (not present and not wanted)
