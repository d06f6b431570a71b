"""Of several operators one leads: whoever holds the Lease. The others wait for it to run out.

As in client-go, a foreign lease has run out when it has not *changed* for its duration by our own clock, so
clocks need not agree. A leader that cannot renew in time must stop before anybody else may begin.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from controlplane.errors import ApiError, Conflict, NotFound
from controlplane.kube import Kube
from controlplane.names import Manifest
from runtime import log

RENEWALS = 4
"""Renewals in the time that the lease holds; a leader gives up when two thirds of it have passed in vain."""
NAME = "splitwise-operator"
logger = log.logger("lease")


class Lease:
    """One operator's claim; `identity` tells it from others."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        identity: str,
        *,
        seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._seen: tuple[str, str, float] = ("", "", 0.0)
        self._sent = 0.0

    async def attempt(self) -> bool:
        """Take or renew the lease; whether it is ours now. Raises ApiError if the server cannot say."""
        try:
            lease = await self._kube.get("Lease", self._namespace, NAME)
        except NotFound:
            return await self._write(None)
        spec = lease.get("spec") or {}
        holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
        if holder in ("", self._identity):
            return await self._write(lease)
        if self._seen[:2] != (holder, renewed):
            self._seen = (holder, renewed, self._clock())
        if self._clock() - self._seen[2] < self._seconds:
            return False
        return await self._write(lease)

    async def until_leading(self) -> None:
        """Wait for our turn."""
        while True:
            try:
                if await self.attempt():
                    logger.info("leading", identity=self._identity)
                    return
            except ApiError as error:
                logger.warning("no lease yet", error=str(error))
            await asyncio.sleep(self._seconds / RENEWALS / 2)

    async def until_lost(self) -> None:
        """Renew for as long as that works in time. A renewal counts from when it was sent, and one that gets
        no answer is not waited for any longer than the lease is ours."""
        good = begun = self._clock()
        while True:
            await asyncio.sleep(max(0.0, begun + self._seconds / RENEWALS - self._clock()))
            begun = self._clock()
            left = good + self._seconds * 2 / 3 - begun
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    if not await self.attempt():
                        break
                good = self._sent
            except (ApiError, TimeoutError) as error:
                logger.warning("lease not renewed", error=str(error) or "no answer")
        logger.error("no longer leading", identity=self._identity)

    async def release(self) -> None:
        """Let somebody else lead at once."""
        try:
            lease = await self._kube.get("Lease", self._namespace, NAME)
            if lease["spec"].get("holderIdentity") == self._identity:
                version = lease["metadata"]["resourceVersion"]
                body = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}}
                await self._kube.patch("Lease", self._namespace, NAME, body)
        except ApiError as error:
            logger.warning("lease not released", error=str(error))

    async def _write(self, lease: Manifest | None) -> bool:
        """Make it ours unless somebody was faster."""
        self._sent = self._clock()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, int(self._seconds)),
            "renewTime": now,
        }
        try:
            if lease is None:
                head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                metadata = {"name": NAME, "namespace": self._namespace}
                await self._kube.create(head | {"metadata": metadata, "spec": spec})
            else:
                version = {"resourceVersion": lease["metadata"]["resourceVersion"]}
                await self._kube.patch("Lease", self._namespace, NAME, {"metadata": version, "spec": spec})
        except Conflict:
            return False
        return True
