"""A small client of the API server, for tests and for the pretend kubelet.

Resources are named as kubectl names them: "pods", "deployments.apps". Every object is the plain
dictionary that the server sent. Nothing here waits without a deadline.
"""

import asyncio
import json
import pathlib
import ssl
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Self

import aiohttp
import yaml

Object = dict[str, Any]
REQUEST_SECONDS = 30.0
WATCH_SECONDS = 240
CLOSING_TURNS = 5
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class ApiError(Exception):
    """The API server refused; `status` and `reason` say how, the message why."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class Client:
    """Speaks to one API server, in one namespace unless told otherwise.

    An async context manager. It reads a kubeconfig as the harness writes it: a server, and perhaps
    a token and an authority.
    """

    def __init__(self, kubeconfig: pathlib.Path, namespace: str = "default") -> None:
        self.namespace = namespace
        config = yaml.safe_load(kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]
        self.url: str = server["server"]
        self._token: str = config["users"][0]["user"].get("token", "")
        self._authority: str | None = server.get("certificate-authority")
        self._discovered: dict[str, dict[str, tuple[str, bool]]] = {}
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        trust = ssl.create_default_context(cafile=self._authority) if self._authority else True
        bearer = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._session = aiohttp.ClientSession(
            self.url,
            headers=bearer,
            connector=aiohttp.TCPConnector(ssl=trust, limit=0),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        for _turn in range(CLOSING_TURNS):  # a TLS connection takes some to let go of its socket
            await asyncio.sleep(0)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        media: str = "application/json",
    ) -> Object:
        """One call of a raw path; a refusal is an ApiError, a dead server an aiohttp error."""
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, path, data=data, params=query, headers={"Content-Type": media}
        ) as answer:
            text = await answer.text()
        if answer.status >= 400:
            raise refusal(answer.status, text)
        return dict(json.loads(text))

    async def path(self, resource: str, name: str | None = None, namespace: str | None = None) -> str:
        """The path of a resource's collection, or of one object in it."""
        plural, _, group = resource.partition(".")
        base = await self._group_path(group)
        kinds = await self._resources(base)
        if plural not in kinds:
            self._discovered.pop(base)  # a CRD may appear later
            raise ApiError(404, "NotFound", f"the server has no resource {resource!r}")
        _, namespaced = kinds[plural]
        scope = f"/namespaces/{namespace or self.namespace}" if namespaced else ""
        if namespaced and namespace == "*":
            scope = ""
        return f"{base}{scope}/{plural}" + (f"/{name}" if name else "")

    async def object_path(self, manifest: Object) -> tuple[str, str]:
        """The collection that `manifest` belongs to, and its name."""
        version = manifest["apiVersion"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        metadata = manifest["metadata"]
        for plural, (kind, namespaced) in (await self._resources(base)).items():
            if kind == manifest["kind"]:
                namespace = metadata.get("namespace", self.namespace)
                scope = f"/namespaces/{namespace}" if namespaced else ""
                return f"{base}{scope}/{plural}", metadata.get("name", "")
        self._discovered.pop(base)
        raise ApiError(404, "NotFound", f"the server has no kind {manifest['kind']!r} in {version}")

    async def apply(self, *manifests: Object | str, manager: str = "tests") -> list[Object]:
        """Server-side apply of dictionaries or YAML texts, in order; conflicts are forced."""
        applied = []
        query = {"fieldManager": manager, "force": "true"}
        for manifest in documents(manifests):
            collection, name = await self.object_path(manifest)
            path = f"{collection}/{name}"
            applied.append(await self.request("PATCH", path, manifest, query=query, media=APPLY))
        return applied

    async def create(self, manifest: Object) -> Object:
        """Creates one object; unlike `apply` this keeps a status that the server accepts."""
        collection, _ = await self.object_path(manifest)
        return await self.request("POST", collection, manifest)

    async def get(self, resource: str, name: str, *, namespace: str | None = None) -> Object:
        return await self.request("GET", await self.path(resource, name, namespace))

    async def list(self, resource: str, *, namespace: str | None = None, selector: str = "") -> list[Object]:
        """All objects, of every namespace if it is "*"; `selector` is a label selector."""
        query = {"labelSelector": selector} if selector else None
        answer = await self.request("GET", await self.path(resource, None, namespace), query=query)
        return list(answer["items"])

    async def patch(
        self,
        resource: str,
        name: str,
        body: Object,
        *,
        subresource: str = "",
        media: str = MERGE,
        namespace: str | None = None,
    ) -> Object:
        """A merge patch; `subresource` is "status" or "scale"."""
        path = await self.path(resource, name, namespace)
        if subresource:
            path += f"/{subresource}"
        return await self.request("PATCH", path, body, media=media)

    async def scale(self, resource: str, name: str, replicas: int) -> None:
        body = {"spec": {"replicas": replicas}}
        await self.patch(resource, name, body, subresource="scale")

    async def annotate(self, resource: str, name: str, values: dict[str, str | None]) -> Object:
        """Sets annotations; None removes one."""
        return await self.patch(resource, name, {"metadata": {"annotations": values}})

    async def delete(
        self,
        resource: str,
        name: str,
        *,
        options: Object | None = None,
        namespace: str | None = None,
    ) -> None:
        """Deletes one object; already gone is fine. `options` is a DeleteOptions body."""
        try:
            await self.request("DELETE", await self.path(resource, name, namespace), options)
        except ApiError as error:
            if error.status != 404:
                raise

    async def watch(self, path: str, query: dict[str, str]) -> AsyncGenerator[Object, None]:
        """The raw events of one watch, until the server ends it."""
        query = {**query, "watch": "1", "timeoutSeconds": str(WATCH_SECONDS)}
        patience = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS)
        async with self._session.get(path, params=query, timeout=patience) as answer:
            if answer.status >= 400:
                raise refusal(answer.status, await answer.text())
            try:
                rest = b""
                async for piece in answer.content.iter_any():
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        yield json.loads(line)
            finally:
                hang_up(answer)

    async def _group_path(self, group: str) -> str:
        if not group:
            return "/api/v1"
        answer = await self.request("GET", f"/apis/{group}")
        return f"/apis/{answer['preferredVersion']['groupVersion']}"

    async def _resources(self, base: str) -> dict[str, tuple[str, bool]]:
        """Plural to kind and "is namespaced", for one group and version; asked once."""
        if base not in self._discovered:
            answer = await self.request("GET", base)
            self._discovered[base] = {
                entry["name"]: (entry["kind"], entry["namespaced"])
                for entry in answer["resources"]
                if "/" not in entry["name"]
            }
        return self._discovered[base]


def hang_up(answer: aiohttp.ClientResponse) -> None:
    """Drops a connection at once. A polite TLS farewell may outlast the test's event loop."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()


def refusal(status: int, text: str) -> ApiError:
    """The ApiError for an answer, whose body is a Status object or plain text."""
    try:
        answer = json.loads(text)
        return ApiError(status, answer.get("reason", ""), answer.get("message", ""))
    except (ValueError, AttributeError):
        return ApiError(status, "", text[:500])


def documents(manifests: Iterable[Object | str]) -> list[Object]:
    """Dictionaries as they are, YAML texts as the objects in them."""
    found: list[Object] = []
    for manifest in manifests:
        if isinstance(manifest, str):
            found += [document for document in yaml.safe_load_all(manifest) if document]
        else:
            found.append(manifest)
    return found


TRANSIENT = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)
