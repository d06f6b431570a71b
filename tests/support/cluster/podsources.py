"""The ConfigMaps, Secrets and token that a pod's environment and files are made from."""

import base64
from collections.abc import Iterator

from cluster.client import ApiError, Client, Object
from cluster.container import StartRefused

Key = tuple[str, str]  # ("configmaps" or "secrets", name)
KINDS = {
    "configMap": "configmaps",
    "secret": "secrets",
    "configMapRef": "configmaps",
    "secretRef": "secrets",
    "configMapKeyRef": "configmaps",
    "secretKeyRef": "secrets",
}


def volume_sources(volume: Object) -> list[Object]:
    """The sources of a volume: several if it is projected, else itself."""
    return list(volume["projected"]["sources"]) if "projected" in volume else [volume]


def key_of(source: Object) -> tuple[Key, bool] | None:
    """Which object a source names, and whether it may be absent; None if it names none."""
    for field, resource in KINDS.items():
        if named := source.get(field):
            return (resource, named.get("name") or named["secretName"]), bool(named.get("optional"))
    return None


def _sources(pod: Object) -> Iterator[Object]:
    for volume in pod["spec"].get("volumes", []):
        yield from volume_sources(volume)
    for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
        yield from container.get("envFrom", [])
        for variable in container.get("env", []):
            yield variable.get("valueFrom", {})


class PodSources:
    """What the API held when last asked. Reading from it is free; `refresh` asks again."""

    def __init__(self, pod: Object) -> None:
        self._pod = pod
        self._data: dict[Key, dict[str, bytes]] = {}
        self.token = ""

    async def refresh(self, client: Client) -> None:
        """Fetches every object that the pod names, and its token, once."""
        namespace = self._pod["metadata"]["namespace"]
        named = {found[0] for source in _sources(self._pod) if (found := key_of(source))}
        for resource, name in sorted(named):
            try:
                item = await client.get(resource, name, namespace=namespace)
                self._data[resource, name] = contents(item)
            except ApiError as error:
                if error.status != 404:
                    raise
                self._data.pop((resource, name), None)
        if not self.token and self._wants_token():
            self.token = await self._request_token(client)

    def data(self, source: Object) -> dict[str, bytes]:
        """The contents of the object that `source` names; StartRefused if it has to be there."""
        found = key_of(source)
        if found is None:
            return {}
        (resource, name), optional = found
        if (resource, name) in self._data:
            return self._data[resource, name]
        if optional:
            return {}
        raise StartRefused("CreateContainerConfigError", f"{resource} {name!r} not found")

    def value(self, source: Object) -> str | None:
        """The value of a configMapKeyRef or secretKeyRef; None if it may be and is absent."""
        reference = source.get("configMapKeyRef") or source["secretKeyRef"]
        data = self.data(source)
        if reference["key"] in data:
            return data[reference["key"]].decode()
        if reference.get("optional"):
            return None
        text = f"key {reference['key']!r} not found in {reference['name']!r}"
        raise StartRefused("CreateContainerConfigError", text)

    def _wants_token(self) -> bool:
        volumes = self._pod["spec"].get("volumes", [])
        return any("serviceAccountToken" in s for v in volumes for s in volume_sources(v))

    async def _request_token(self, client: Client) -> str:
        """A token of the pod's service account, void once the pod is gone."""
        metadata = self._pod["metadata"]
        account = self._pod["spec"].get("serviceAccountName", "default")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"boundObjectRef": bound | {"uid": metadata["uid"]}},
        }
        path = await client.path("serviceaccounts", account, metadata["namespace"])
        answer = await client.request("POST", path + "/token", body)
        return str(answer["status"]["token"])


def contents(item: Object) -> dict[str, bytes]:
    """The entries of a ConfigMap or of a Secret."""
    encoded = item.get("binaryData", {})
    if "type" in item:  # a Secret
        encoded = item.get("data", {})
        plain: dict[str, str] = {}
    else:
        plain = item.get("data", {})
    texts = {key: value.encode() for key, value in plain.items()}
    return texts | {key: base64.b64decode(value) for key, value in encoded.items()}
