"""A pod's place on this machine: its files, its environment, its commands.

A local process cannot have the paths of its container, so each mount path and each wildcard address
is replaced, in commands, environment and mounted files alike: by a folder of the pod, by the pod's
address. A server that is told to bind 0.0.0.0 binds its pod's address, and shares its port with
other pods as in a cluster. `/tmp` is left alone; TMPDIR points into the pod's folder.
"""

import os
import pathlib
import re
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

from cluster.client import Client, Object
from cluster.container import StartRefused
from cluster.fields import expand, field
from cluster.keys import write_kubeconfig
from cluster.podsources import PodSources, volume_sources

WILDCARD = r"(?<![\d.])0\.0\.0\.0(?![\d.])|\[::\]"
ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
INHERITED = ("SPLITWISE_CLUSTER", "LANG", "LC_ALL", "OPENBLAS_NUM_THREADS")


class Sandbox:
    """Everything that the processes of one pod share."""

    def __init__(self, pod: Object, folder: pathlib.Path, *, ip: str, host_ip: str) -> None:
        self.pod = pod
        self.ip = ip
        self.folder = folder
        self._host_ip = host_ip
        self._sources = PodSources(pod)
        self._mounts = self._mount_paths()
        self._pattern = self._rewriting()
        self._environment: dict[str, str] = {}

    async def refresh(self, client: Client) -> None:
        """Brings the pod's files up to date; StartRefused while something is missing."""
        await self._sources.refresh(client)
        for volume in self.pod["spec"].get("volumes", []):
            place = self._place(volume)
            place.mkdir(parents=True, exist_ok=True)
            for name, content in self._files(volume):
                write(place / name, self._localised(content))
        (self.folder / "tmp").mkdir(exist_ok=True)
        self._environment = self._base_environment(client)

    def localise(self, text: str) -> str:
        """`text` with the container's paths and wildcard addresses made local."""

        def local(match: re.Match[str]) -> str:
            return self._mounts.get(match[0], self.ip)

        return self._pattern.sub(local, text)

    def environment(self, container: Object) -> dict[str, str]:
        """The container's variables over the few that every process needs."""
        own: dict[str, str] = {}
        for source in container.get("envFrom", []):
            data = self._sources.data(source).items()
            own |= {source.get("prefix", "") + key: value.decode() for key, value in data}
        for variable in container.get("env", []):
            value = self._value(variable, own)
            if value is not None:
                own[variable["name"]] = value
        return self._environment | {key: self.localise(value) for key, value in own.items()}

    def command(self, container: Object, entrypoint: list[str]) -> list[str]:
        """The container's command line; `entrypoint` stands in for the image's."""
        command = container.get("command") or entrypoint
        if not command:
            text = f"image {container['image']} has no known entry point and no command is given"
            raise StartRefused("CreateContainerError", text)
        variables = self.environment(container)
        words = [*command, *container.get("args", [])]
        return [self.localise(expand(word, variables)) for word in words]

    def working_folder(self, container: Object) -> pathlib.Path:
        chosen = pathlib.Path(self.localise(container.get("workingDir", "")) or self.folder)
        return chosen if chosen.is_dir() else self.folder

    def _value(self, variable: Object, so_far: dict[str, str]) -> str | None:
        source = variable.get("valueFrom")
        if source is None:
            return expand(variable.get("value", ""), so_far)
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"])
        if "resourceFieldRef" in source:
            resource = source["resourceFieldRef"]
            return str(self._resource(resource.get("containerName", ""), resource["resource"]))
        return self._sources.value(source)

    def _resource(self, container: str, path: str) -> object:
        """A request or limit: "limits.nvidia.com/gpu"."""
        section, _, name = path.partition(".")
        for spec in self.pod["spec"]["containers"]:
            if container in ("", spec["name"]):
                return spec.get("resources", {}).get(section, {}).get(name, 0)
        return 0

    def _field(self, path: str) -> str:
        return field(self.pod, path, ip=self.ip, host_ip=self._host_ip)

    def _files(self, volume: Object) -> Iterator[tuple[str, bytes]]:
        for source in volume_sources(volume):
            chosen = source.get("configMap") or source.get("secret") or {}
            data = self._sources.data(source)
            items = chosen.get("items") or [{"key": key, "path": key} for key in data]
            yield from ((item["path"], data[item["key"]]) for item in items if item["key"] in data)
            for item in (source.get("downwardAPI") or {}).get("items", []):
                if "fieldRef" in item:
                    yield item["path"], self._field(item["fieldRef"]["fieldPath"]).encode()
            if token := source.get("serviceAccountToken"):
                yield token["path"], self._sources.token.encode()

    def _place(self, volume: Object) -> pathlib.Path:
        """A volume's folder. A claim's outlives the pod; a host path is the host's."""
        if host := volume.get("hostPath"):
            return pathlib.Path(host["path"])
        if claim := volume.get("persistentVolumeClaim"):
            return self.folder.parents[1] / "claims" / str(claim["claimName"])
        return self.folder / "volumes" / str(volume["name"])

    def _mount_paths(self) -> dict[str, str]:
        places = {v["name"]: self._place(v) for v in self.pod["spec"].get("volumes", [])}
        containers = self.pod["spec"].get("initContainers", []) + self.pod["spec"]["containers"]
        return {
            mount["mountPath"].rstrip("/"): str(places[mount["name"]] / mount.get("subPath", ""))
            for container in containers
            for mount in container.get("volumeMounts", [])
            if mount["mountPath"].rstrip("/") != "/tmp"
        }

    def _rewriting(self) -> re.Pattern[str]:
        longest_first = sorted(self._mounts, key=len, reverse=True)
        paths = [rf"(?<![\w.-]){re.escape(path)}(?![\w.-])" for path in longest_first]
        return re.compile("|".join([*paths, WILDCARD]))

    def _localised(self, content: bytes) -> bytes:
        try:
            return self.localise(content.decode()).encode()
        except UnicodeDecodeError:
            return content

    def _base_environment(self, client: Client) -> dict[str, str]:
        server = urlsplit(client.url)
        base = {key: os.environ[key] for key in INHERITED if key in os.environ}
        base |= {
            "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "HOSTNAME": self.pod["metadata"]["name"],
            "KUBERNETES_SERVICE_HOST": server.hostname or "",
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        if ACCOUNT_PATH in self._mounts:
            path = self.folder / "kubeconfig"
            authority = pathlib.Path(self._mounts[ACCOUNT_PATH]) / "ca.crt"
            token = self._sources.token
            write_kubeconfig(path, client.url, token=token, authority=authority)
            base["KUBECONFIG"] = str(path)
        return base


def write(path: pathlib.Path, content: bytes) -> None:
    """Replaces a file as a whole, and only if it changes."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.chmod(0o600)
    partial.rename(path)
