"""A running cluster, as a test sees it: a control plane of our own, or one that exists.

Everything it starts carries one mark in its environment. A janitor clears that up when the cluster
stops, and when the test run is killed.
"""

import asyncio
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import uuid
from typing import Self

from cluster import binaries, janitor
from cluster.client import Client
from cluster.controlplane import ControlPlane
from cluster.keys import write_kubeconfig
from cluster.process import Process, ProcessFailed

SUPPORT = pathlib.Path(__file__).resolve().parents[1]
COMMAND_SECONDS = 120.0
PROXY_SECONDS = 20.0
_numbers = itertools.count()


def importable() -> dict[str, str]:
    """The variable with which a Python program of ours can import `cluster`."""
    paths = (str(SUPPORT), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Cluster:
    """Use `start` or `join`, and `stop` at the end. `control_plane` is None if it is not ours."""

    def __init__(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="splitwise-cluster-"))
        mark = uuid.uuid4().hex
        self.environment = {**os.environ, janitor.VARIABLE: mark}
        script = pathlib.Path(janitor.__file__)
        plain = [sys.executable, "-S", "-E", str(script), mark, str(self.folder)]
        self._janitor = subprocess.Popen(plain, stdin=subprocess.PIPE, start_new_session=True)
        self.control_plane: ControlPlane | None = None
        self.kubeconfig = self.folder / "kubeconfig"
        self._processes: list[Process] = []

    @classmethod
    def start(cls) -> Self:
        """A control plane of our own with a pretend kubelet; a few seconds."""
        cluster = cls()
        try:
            cluster.control_plane = ControlPlane(cluster.folder, cluster.environment)
            cluster.control_plane.start_all()
            cluster.kubeconfig = cluster.control_plane.kubeconfig
            cluster._start_kubelet()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @classmethod
    def join(cls) -> Self:
        """The cluster of the current kubeconfig, reached through `kubectl proxy`."""
        cluster = cls()
        try:
            cluster.kubeconfig = cluster._start_proxy()
            cluster._start_kubelet()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def client(self, namespace: str = "default") -> Client:
        """A client with every right; an async context manager."""
        return Client(self.kubeconfig, namespace)

    async def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """The output of one kubectl command, which has to succeed; `text` is its input."""
        return await self._command("kubectl", arguments, text)

    async def helm(self, *arguments: str) -> str:
        """The output of one helm command, which has to succeed."""
        return await self._command("helm", arguments, None)

    def pod_log(self, namespace: str, pod: str, container: str) -> str:
        """What a container that runs as a process has printed, over all its restarts."""
        path = self.folder / "pods" / f"{namespace}_{pod}" / f"{container}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def check(self) -> None:
        """Raises ProcessFailed if a program that we started has died by itself."""
        for process in self._processes:
            process.check()

    def stop(self) -> None:
        """Ends everything. Nothing is left, neither processes nor files."""
        for process in reversed(self._processes):
            process.stop()
        if self.control_plane is not None:
            self.control_plane.stop()
        self._janitor.communicate(timeout=30)

    def _start_kubelet(self) -> None:
        number = str(next(_numbers))
        command = [sys.executable, "-m", "cluster.kubelet", str(self.kubeconfig)]
        command += [str(self.folder / "pods"), number]
        self._launch(command, "kubelet.log", importable())

    def _start_proxy(self) -> pathlib.Path:
        log = self._launch([str(binaries.find("kubectl")), "proxy", "--port=0"], "proxy.log", {})
        deadline = time.monotonic() + PROXY_SECONDS
        while time.monotonic() < deadline:
            self.check()
            if found := re.search(r"127\.0\.0\.1:\d+", log.read_text()):
                return write_kubeconfig(self.kubeconfig, f"http://{found[0]}")
            time.sleep(0.05)
        raise ProcessFailed("kubectl proxy does not start")

    def _launch(self, command: list[str], log_name: str, extra: dict[str, str]) -> pathlib.Path:
        log = self.folder / log_name
        process = Process(command, log=log, environment=self.environment | extra)
        process.start()
        self._processes.append(process)
        return log

    async def _command(self, name: str, arguments: tuple[str, ...], text: str | None) -> str:
        child = await asyncio.create_subprocess_exec(
            str(binaries.find(name)),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment | {"KUBECONFIG": str(self.kubeconfig)} | self._private_home(),
        )
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                out, err = await child.communicate((text or "").encode())
        except TimeoutError:
            child.kill()
            await child.wait()
            raise
        if child.returncode != 0:
            words = " ".join((name, *arguments))
            raise ProcessFailed(f"{words}: exit code {child.returncode}\n{err.decode()}")
        return out.decode()

    def _private_home(self) -> dict[str, str]:
        """Caches of kubectl and helm: inside the cluster's folder, not the user's home."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        folders = {"XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data"}
        return {"HOME": str(home)} | {key: str(home / name) for key, name in folders.items()}
