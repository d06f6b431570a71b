"""Where the API server is and who we are: from a kubeconfig, or from the pod's service account."""

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from controlplane.errors import NoAccess

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Access:
    """`token_file` is read again for each call, since the kubelet renews it."""

    server: str
    namespace: str = "default"
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    tls: ssl.SSLContext | None = None

    def bearer(self) -> str:
        """The token to show now; empty for none."""
        return self.token_file.read_text().strip() if self.token_file else self.token


def find_access() -> Access:
    """KUBECONFIG, else the service account of this pod, else ~/.kube/config. Raises NoAccess."""
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
        tls=ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt")),
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
            tls=_tls(cluster, user, path.parent) if cluster["server"].startswith("https") else None,
        )
    except (OSError, KeyError, TypeError, yaml.YAMLError) as error:
        raise NoAccess(f"{path}: not a kubeconfig with a current context: {error!r}") from error


def _named(config: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    for entry in config[section]:
        if entry["name"] == name:
            return dict(entry)
    raise KeyError(f"{section}: {name}")


def _tls(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext:
    authority = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cafile=str(folder / cluster["certificate-authority"]) if "certificate-authority" in cluster else None,
        cadata=base64.b64decode(authority).decode() if authority else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "client-certificate" in user:
        context.load_cert_chain(folder / user["client-certificate"], folder / user["client-key"])
    elif "client-certificate-data" in user:
        _load_inline(context, user["client-certificate-data"], user["client-key-data"])
    return context


def _load_inline(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """The ssl module reads key pairs from files only, so for a moment there is one."""
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(base64.b64decode(certificate) + b"\n" + base64.b64decode(key))
        file.flush()
        context.load_cert_chain(file.name)
