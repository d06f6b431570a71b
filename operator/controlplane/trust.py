"""The link Secret's keys over time: made once, replaced before they get old, without a restart.

Kubelets bring a changed Secret into running pods within a minute or two, each at its own time. So a key is
replaced in steps, of which two neighbouring ones always get along: a listener shows the first key of its
file, a caller accepts any of its own (`runtime.link.keyring`).

    settled     old            for the rotation period
    announced   old, new       until every pod knows the new key
    adopted     new, old       until every pod shows the new key
    settled     new

The step and its time are annotations of the Secret, so that a pass needs no look at the keys themselves:
they are read only when a step is due.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from controlplane import names
from controlplane.api import seconds
from controlplane.children.access import link_secret, secret_data
from controlplane.children.config import SECRET_KEY
from controlplane.kube import Kube
from controlplane.names import LINK_SINCE, LINK_STEP, Manifest
from controlplane.target import Target
from runtime import log
from runtime.link.keyring import KEY_BYTES

Step = Literal["settled", "announced", "adopted"]
_STEPS: dict[str | None, Step] = {step: step for step in get_args(Step)}
_STAMP = "%Y-%m-%dT%H:%M:%SZ"
logger = log.logger("trust")


@dataclass(frozen=True, slots=True)
class Trust:
    """Where a Secret is in its rotation, and since when."""

    step: Step
    since: datetime

    def due(self, now: datetime, *, period: timedelta, settling: timedelta) -> bool:
        """Whether the next step is to be made. A period of zero starts no rotation, but ends a begun one."""
        if self.step == "settled":
            return bool(period) and now - self.since >= period
        return now - self.since >= settling


def stepped(step: Step, keys: Sequence[str], fresh: str) -> tuple[Step, tuple[str, ...]]:
    """The next step and its keys. `fresh` is a new key, taken where one is needed.

    Keys that somebody else wrote, too few for the step, begin it anew; none at all are replaced at once,
    since nobody can be using them."""
    if not keys:
        return "settled", (fresh,)
    if step == "settled" or len(keys) == 1:
        return "announced", (keys[0], fresh)
    if step == "announced":
        return "adopted", (keys[1], keys[0])
    return "settled", (keys[0],)


def trust_of(secret: Manifest) -> Trust:
    """The rotation of a Secret by its metadata; one without annotations is settled since it was made."""
    metadata = secret["metadata"]
    annotations = metadata.get("annotations") or {}
    try:
        since = _time(annotations[LINK_SINCE])
    except (KeyError, ValueError):
        return Trust("settled", _time(metadata["creationTimestamp"]))
    return Trust(_STEPS.get(annotations.get(LINK_STEP), "settled"), since)


def marked(manifest: Manifest, step: Step, now: datetime) -> Manifest:
    """A Secret, or a patch of one, with the step it is at."""
    stamps = {LINK_STEP: step, LINK_SINCE: now.astimezone(UTC).strftime(_STAMP)}
    return manifest | {"metadata": manifest["metadata"] | {"annotations": stamps}}


async def keep(
    trust: Trust | None, target: Target, kube: Kube, *, random_key: Callable[[], str], now: datetime
) -> None:
    """Make the Secret, or its next step if that is due. Raises ApiError."""
    settings, name = target.settings, names.secret(target.name)
    if trust is None:
        await kube.create(marked(link_secret(target, random_key()), "settled", now))
        return
    period = timedelta(seconds=seconds(settings.link_rotation))
    settling = timedelta(seconds=seconds(settings.link_settling))
    if trust.due(now, period=period, settling=settling):
        step = await rotate(kube, target.namespace, name, fresh=random_key(), now=now)
        logger.info("link keys", secret=f"{target.namespace}/{name}", step=step)


async def rotate(kube: Kube, namespace: str, name: str, *, fresh: str, now: datetime) -> Step:
    """Make the next step on a Secret, and say which. Raises Conflict if somebody changed it meanwhile."""
    secret = await kube.get("Secret", namespace, name)
    step, keys = stepped(trust_of(secret).step, _keys(secret), fresh)
    version = secret["metadata"].get("resourceVersion")
    patch = marked({"metadata": {"resourceVersion": version}, "data": secret_data(keys)}, step, now)
    await kube.patch("Secret", namespace, name, patch)
    return step


def _keys(secret: Manifest) -> list[str]:
    """The usable keys in a Secret."""
    try:
        text = base64.b64decode(secret.get("data", {}).get(SECRET_KEY, "")).decode()
    except (binascii.Error, UnicodeDecodeError):
        return []
    return [line.strip() for line in text.split("\n") if len(line.strip()) >= KEY_BYTES]


def _time(text: str) -> datetime:
    return datetime.strptime(text, _STAMP).replace(tzinfo=UTC)
