"""Where the API server is and who we are: from a kubeconfig, or from the pod's service account.

The operator asks it for everything; a router only follows its machines (`router.discovery_slices`).
"""

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoAccess(ValueError):
    """Nothing usable says where the API server is; the message says what to set."""


@dataclass(frozen=True, slots=True)
class Access:
    """`token_file` is read again for each call, since the kubelet renews it. `authority`, `certificate` and
    `key` are PEM texts."""

    server: str
    namespace: str = "default"
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    insecure: bool = False

    def bearer(self) -> str:
        """The token to show now; empty for none."""
        return self.token_file.read_text().strip() if self.token_file else self.token

    def tls(self) -> ssl.SSLContext | None:
        """For HTTPS; None for a plain server, such as `kubectl proxy`."""
        if not self.server.startswith("https:"):
            return None
        context = ssl.create_default_context(cadata=self.authority or None)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # key pairs are read from files only
                file.write(f"{self.certificate}\n{self.key}\n".encode())
                file.flush()
                context.load_cert_chain(file.name)
        return context


def find_access() -> Access:
    """KUBECONFIG, else the service account of this pod, else ~/.kube/config. POD_NAMESPACE, where it is set,
    says which namespace is ours. Raises NoAccess."""
    access = _found()
    namespace = os.environ.get("POD_NAMESPACE")
    return replace(access, namespace=namespace) if namespace else access


def _found() -> Access:
    if named := os.environ.get("KUBECONFIG"):
        return from_kubeconfig(Path(named.split(os.pathsep)[0]))
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (ACCOUNT / "token").exists():
        return _in_cluster()
    own = Path.home() / ".kube" / "config"
    if own.exists():
        return from_kubeconfig(own)
    raise NoAccess("no API server: set KUBECONFIG, or run in a pod with a service account")


def _in_cluster() -> Access:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=(ACCOUNT / "namespace").read_text().strip(),
        token_file=ACCOUNT / "token",
        authority=(ACCOUNT / "ca.crt").read_text(),
    )


def from_kubeconfig(path: Path) -> Access:
    """The current context of a kubeconfig. Raises NoAccess for what is not supported, such as plugins."""
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"]).get("user") or {}
        if "exec" in user or "auth-provider" in user:
            raise NoAccess(f"{path}: credential plugins are not supported; use a token or a certificate")
        return Access(
            server=cluster["server"],
            namespace=context.get("namespace", "default"),
            token=user.get("token", ""),
            token_file=path.parent / user["tokenFile"] if "tokenFile" in user else None,
            authority=_pem(cluster, "certificate-authority", path.parent),
            certificate=_pem(user, "client-certificate", path.parent),
            key=_pem(user, "client-key", path.parent),
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
        )
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise NoAccess(f"{path}: not a kubeconfig with a current context: {error!r}") from error


def _named(config: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    for entry in config[section]:
        if entry["name"] == name:
            return dict(entry)
    raise KeyError(f"{section}: {name}")


def _pem(entry: dict[str, Any], field: str, folder: Path) -> str:
    """A PEM text that is inline, in a file, or not there."""
    if inline := entry.get(f"{field}-data"):
        return base64.b64decode(inline).decode()
    return (folder / entry[field]).read_text() if field in entry else ""
