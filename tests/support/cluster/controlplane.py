"""etcd, API server, controller manager and scheduler on loopback: no root, no containers.

The controller manager and the scheduler always run: without them namespaces never finish deleting,
owned objects are never collected and no pod gets a node.
"""

import contextlib
import http.client
import json
import pathlib
import ssl
import time
import urllib.request
from collections.abc import Mapping

from cluster import binaries, network
from cluster.client import Object
from cluster.keys import make_keys
from cluster.process import Process, ProcessFailed

START_SECONDS = 90.0
QUICK_CLIENT = ["--kube-api-qps=500", "--kube-api-burst=1000"]
# A silent node is noticed in seconds; pods leave a lost node soon. Upstream waits minutes.
NODE_LIFECYCLE = [
    "--node-monitor-period=1s",
    "--node-monitor-grace-period=12s",
    "--node-eviction-rate=10",
    "--secondary-node-eviction-rate=10",
]
EVICTION_SECONDS = 5
# An autoscaler looks every second and follows at once. Upstream waits 15 seconds and five minutes.
AUTOSCALING = [
    "--horizontal-pod-autoscaler-sync-period=1s",
    "--horizontal-pod-autoscaler-downscale-stabilization=1s",
]
_SCALERS = [{"group": "splitwise.dev", "resources": ["splitwisepools", "splitwisepools/scale"]}]
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Request", "verbs": ["create", "update", "patch", "delete"], "resources": _SCALERS},
        {"level": "None"},
    ],
}


class ControlPlane:
    """The four programs. `kill` and `start` take one down and up again; the data stays."""

    def __init__(self, folder: pathlib.Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._port = network.free_port()
        self.keys = make_keys(folder, ["127.0.0.1", str(network.SERVICES[1])])
        self.url = f"https://127.0.0.1:{self._port}"
        self.kubeconfig = self.keys.kubeconfig("admin", self.url)
        etcd_url = f"http://127.0.0.1:{network.free_port()}"
        self._etcd_url = etcd_url
        self._programs = {
            "etcd": self._process("etcd", self._etcd_flags(etcd_url)),
            "kube-apiserver": self._process("kube-apiserver", self._api_flags(etcd_url)),
            "kube-controller-manager": self._process("kube-controller-manager", self._controller_flags()),
            "kube-scheduler": self._process("kube-scheduler", self._scheduler_flags()),
        }

    def start_all(self) -> None:
        """Starts everything and waits until a namespace would get its service account. The controllers start
        last: they give up if an API server is slow to give them their rights."""
        for name in ("etcd", "kube-apiserver"):
            self._programs[name].start()
        self._wait("/readyz", START_SECONDS)
        for name in ("kube-controller-manager", "kube-scheduler"):
            self._programs[name].start()
        self._wait("/api/v1/namespaces/default/serviceaccounts/default", START_SECONDS)

    def start(self, name: str) -> None:
        """Starts one program again. For the API server, returns when it answers."""
        self._programs[name].start()
        if name == "kube-apiserver":
            self._wait("/readyz", START_SECONDS)

    def kill(self, name: str) -> None:
        """Ends one program with SIGKILL."""
        self._programs[name].kill()

    def program(self, name: str) -> Process:
        """One of the four, for instance to `freeze` and `thaw` it."""
        return self._programs[name]

    def stop(self) -> None:
        for program in reversed(self._programs.values()):
            program.stop()

    def get(self, path: str, *, seconds: float = 5.0) -> tuple[int, bytes]:
        """One GET as admin, outside of any event loop. TimeoutError after `seconds`."""
        trust = ssl.create_default_context(cafile=str(self.keys.certificate))
        server = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=seconds, context=trust)
        with contextlib.closing(server):
            bearer = {"Authorization": f"Bearer {self.keys.tokens['admin']}"}
            server.request("GET", path, headers=bearer)
            answer = server.getresponse()
            return answer.status, answer.read()

    def forget(self) -> None:
        """etcd and the API server, which is restarted for it, keep nothing but the present state."""
        revision = self._etcd("range", {"key": "AA=="})["header"]["revision"]
        self.kill("kube-apiserver")
        self._etcd("compaction", {"revision": revision, "physical": True})
        self.start("kube-apiserver")

    def _etcd(self, call: str, body: Object) -> Object:
        """One call of etcd's key-value API, by its JSON gateway."""
        request = urllib.request.Request(f"{self._etcd_url}/v3/kv/{call}", data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))

    def audited(self) -> list[Object]:
        """Every write to the scalers of pools: who (`user`), how (`verb`), what (`requestObject`)."""
        log = self._folder / "audit.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def _wait(self, path: str, seconds: float) -> None:
        """Until `path` answers 200; the log of a program that ends meanwhile is in the error."""
        deadline = time.monotonic() + seconds
        last = "no answer"
        while time.monotonic() < deadline:
            for program in self._programs.values():
                if program.started:
                    program.check()
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, body = self.get(path)
                if status == http.HTTPStatus.OK:
                    return
                last = f"{status} {body.decode(errors='replace')[:500]}"
            time.sleep(0.05)
        raise ProcessFailed(f"{path} not ready after {seconds:.0f} s: {last}")

    def _process(self, name: str, flags: list[str]) -> Process:
        command = [str(binaries.find(name)), *flags]
        log = self._folder / f"{name}.log"
        return Process(command, log=log, environment=self._environment)

    def _etcd_flags(self, url: str) -> list[str]:
        peer = f"http://127.0.0.1:{network.free_port()}"
        return [
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _api_flags(self, etcd_url: str) -> list[str]:
        keys = self.keys
        policy = self._folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        return [
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # loopback is not allowed in its Endpoints
            f"--secure-port={self._port}",
            f"--etcd-servers={etcd_url}",
            f"--tls-cert-file={keys.certificate}",
            f"--tls-private-key-file={keys.key}",
            f"--token-auth-file={keys.token_file}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--service-cluster-ip-range={network.SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={keys.certificate}",
            f"--service-account-signing-key-file={keys.key}",
            f"--default-not-ready-toleration-seconds={EVICTION_SECONDS}",
            f"--default-unreachable-toleration-seconds={EVICTION_SECONDS}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._folder / 'audit.log'}",
        ]

    def _controller_flags(self) -> list[str]:
        keys = self.keys
        return [
            f"--kubeconfig={keys.kubeconfig('system:kube-controller-manager', self.url)}",
            f"--secure-port={network.free_port()}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={keys.key}",
            f"--root-ca-file={keys.certificate}",
            *QUICK_CLIENT,
            *NODE_LIFECYCLE,
            *AUTOSCALING,
        ]

    def _scheduler_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.keys.kubeconfig('system:kube-scheduler', self.url)}",
            f"--secure-port={network.free_port()}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            *QUICK_CLIENT,
        ]
