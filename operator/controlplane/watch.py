"""kopf tells us that something changed; we ask the queue for a pass. Nothing else happens here.

Only event watchers are registered, so kopf writes nothing to any object: no finalizer, no annotation. What
exists at the start arrives as events too, so a restart simply goes on. kopf does not repeat a handler that
failed; repeating is the queue's part.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from controlplane import names
from controlplane.api import KIND
from controlplane.gpus import Node
from controlplane.kinds import KINDS
from controlplane.names import Manifest
from controlplane.nodes import owners
from controlplane.observe import node_of
from controlplane.reconcile import Key
from runtime.kubernetes import Access

Wake = Callable[[Key, float], None]
"""Asks for a pass over a deployment within so many seconds."""
SOON_SECONDS = 0.2
"""What we write to children comes back as several events, and so does what controllers make of it: they are
waited for together. An edited spec does not wait."""
LOGIN_SECONDS = 600
WATCH_SECONDS = 300
SILENCE_SECONDS = 360


class NodeStore:
    """The cluster's nodes as last seen."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def __call__(self) -> list[Node]:
        return list(self._nodes.values())

    def fill(self, items: Iterable[Manifest]) -> None:
        """All nodes, as listed."""
        self._nodes = {item["metadata"]["name"]: node_of(item) for item in items}

    def changed(self, item: Manifest, *, gone: bool) -> set[Key] | None:
        """Take in one node's news: the deployments that care, or None if it may be any."""
        name = item["metadata"]["name"]
        before, after = self._nodes.pop(name, None), None if gone else node_of(item)
        if after is not None:
            self._nodes[name] = after
        if before is None or after is None or (before.product, before.gpus) != (after.product, after.gpus):
            return None
        return owners([before, after]) if before.labels != after.labels else set()


def registry(
    wake: Wake, wake_all: Callable[[], None], store: NodeStore, told: dict[Key, str], access: Access
) -> Any:
    """The watchers: of deployments, of their children, and of nodes. `told`: versions of our own making."""
    handlers = kopf.OperatorRegistry()
    for kind in KINDS.values():
        if kind.watched:
            watcher = kopf.on.event(kind.group, kind.version, kind.plural, registry=handlers)
            watcher(_edited(wake, told) if kind.name == KIND else _child_changed(wake))

    @kopf.on.event("", "v1", "nodes", registry=handlers)
    async def node(event: kopf.RawEvent, **_: Any) -> None:
        concerned = store.changed(dict(event["object"]), gone=event["type"] == "DELETED")
        if concerned is None:
            wake_all()
        for key in concerned or ():
            wake(key, SOON_SECONDS)

    @kopf.on.login(registry=handlers)
    def login(**_: Any) -> kopf.ConnectionInfo:
        soon = datetime.now(UTC) + timedelta(seconds=LOGIN_SECONDS)
        return kopf.ConnectionInfo(
            server=access.server,
            token=access.bearer() or None,
            ca_data=access.authority or None,
            certificate_data=access.certificate or None,
            private_key_data=access.key or None,
            insecure=access.insecure,
            expiration=soon if access.token_file else None,
        )

    return handlers


def _child_changed(wake: Wake) -> Callable[..., Any]:
    async def changed(*, namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        wake((namespace or "", labels.get(names.DEPLOYMENT, "")), SOON_SECONDS)

    return changed


def _edited(wake: Wake, told: dict[Key, str]) -> Callable[..., Any]:
    """A deployment that is new, edited or gone is looked at now; one touched otherwise, soon; one that only
    got the status that we wrote, not at all."""
    generations: dict[Key, int] = {}

    async def changed(*, event: kopf.RawEvent, name: str, namespace: str | None, **_: Any) -> None:
        key, gone = (namespace or "", name), event["type"] == "DELETED"
        metadata: Any = event["object"].get("metadata", {})
        generation = metadata.get("generation", 0)
        same = generations.pop(key, None) == generation and not gone
        if gone:
            told.pop(key, None)
        else:
            generations[key] = generation
        if not same:
            wake(key, 0.0)
        elif metadata.get("resourceVersion") != told.get(key):
            wake(key, SOON_SECONDS)

    return changed


def settings() -> kopf.OperatorSettings:
    """kopf as a mere watcher."""
    quiet = kopf.OperatorSettings()
    quiet.posting.enabled = False
    quiet.scanning.disabled = True
    quiet.watching.server_timeout = WATCH_SECONDS
    quiet.watching.client_timeout = SILENCE_SECONDS
    quiet.watching.reconnect_backoff = 0.5
    quiet.networking.request_timeout = 30
    quiet.execution.max_workers = 1
    quiet.queueing.idle_timeout = 0.5  # nothing is kept per object, and the end need not wait for it
    quiet.queueing.exit_timeout = 0.5
    for kind in KINDS.values():
        if kind.watched and kind.name != KIND:
            quiet.watching.label_selectors[kind.group, kind.version, kind.plural] = names.DEPLOYMENT
    return quiet
