"""The API server, as five verbs on plain dictionaries."""

import json
from collections.abc import Mapping
from typing import Any, Protocol, Self

import aiohttp

from controlplane.errors import ApiError, Conflict, NotFound
from controlplane.kinds import KINDS
from controlplane.names import MANAGER, Manifest
from runtime.kubernetes import Access

REQUEST_SECONDS = 30.0
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class Kube(Protocol):
    """What a pass needs of an API server. Every call may raise ApiError; nothing waits without a deadline."""

    async def get(self, kind: str, namespace: str, name: str, *, metadata_only: bool = False) -> Manifest:
        """One object. Raises NotFound."""

    async def list(
        self, kind: str, namespace: str | None, selector: Mapping[str, str] = {}
    ) -> list[Manifest]:
        """Objects with these labels; none if the cluster does not know the kind."""

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Server-side apply: make it so, take our fields from whoever changed them."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Make it, once. Raises Conflict if it is there."""

    async def patch(self, kind: str, namespace: str, name: str, body: Manifest) -> Manifest:
        """Merge these few fields. Raises NotFound."""

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete this very object; already gone, or another of its name, is fine."""


class ApiServer:
    """A Kube over HTTP; an async context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session: aiohttp.ClientSession
        self.calls = 0
        self.writes = 0

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._access.tls() or True, limit=32)
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, kind: str, namespace: str, name: str, *, metadata_only: bool = False) -> Manifest:
        accept = _METADATA if metadata_only else "application/json"
        return await self._call("GET", KINDS[kind].path(namespace, name), accept=accept)

    async def list(
        self, kind: str, namespace: str | None, selector: Mapping[str, str] = {}
    ) -> list[Manifest]:
        wanted = ",".join(f"{key}={value}" if value else key for key, value in selector.items())
        query = {"labelSelector": wanted} if wanted else {}
        try:
            answer = await self._call("GET", KINDS[kind].path(namespace), query=query)
        except NotFound:
            return []
        head = {"apiVersion": KINDS[kind].api_version, "kind": kind}
        return [head | item for item in answer["items"]]

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        path = _path(manifest) + (f"/{subresource}" if subresource else "")
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self._call("PATCH", path, manifest, query=query, media=_APPLY)

    async def create(self, manifest: Manifest) -> Manifest:
        path = _path(manifest).rsplit("/", 1)[0]
        return await self._call("POST", path, manifest, query={"fieldManager": f"{MANAGER}-seed"})

    async def patch(self, kind: str, namespace: str, name: str, body: Manifest) -> Manifest:
        query = {"fieldManager": MANAGER}
        return await self._call("PATCH", KINDS[kind].path(namespace, name), body, query=query, media=_MERGE)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._call("DELETE", KINDS[kind].path(namespace, name), options)
        except (NotFound, Conflict):
            return

    async def knows(self, api_version: str, plural: str) -> bool:
        """Whether the server serves a kind of another project."""
        try:
            answer = await self._call("GET", f"/apis/{api_version}")
        except NotFound:
            return False
        return any(entry["name"] == plural for entry in answer["resources"])

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] = {},
        media: str = "application/json",
        accept: str = "application/json",
    ) -> Manifest:
        headers = {"Content-Type": media, "Accept": accept}
        if bearer := self._access.bearer():
            headers["Authorization"] = f"Bearer {bearer}"
        self.calls += 1
        self.writes += method != "GET"
        data = None if body is None else json.dumps(body)
        url = self._access.server + path
        try:
            async with self._session.request(method, url, data=data, params=query, headers=headers) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"{method} {path}: no answer from the API server: {error!r}") from error
        if answer.status >= 400:
            raise refusal(answer.status, text)
        return dict(json.loads(text))


def _path(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return KINDS[manifest["kind"]].path(metadata.get("namespace"), metadata["name"])


def refusal(status: int, text: str) -> ApiError:
    """The exception for an answer; its body is a Status object, or text from something in between."""
    try:
        message = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        message = text[:500] or f"HTTP status {status}"
    kind = {404: NotFound, 409: Conflict}.get(status, ApiError)
    return kind(status, message)
