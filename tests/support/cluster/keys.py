"""The secrets of one cluster: a key pair, and a token for each of its clients.

One key pair is enough: its self-signed certificate serves the API and is its own authority, and the
key also signs service-account tokens. Clients prove themselves by token.
"""

import csv
import dataclasses
import pathlib
import secrets
import subprocess

import yaml

USERS: dict[str, list[str]] = {
    "admin": ["system:masters"],
    "system:kube-controller-manager": [],
    "system:kube-scheduler": [],
}
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """Files for the API server's flags, and a token per user."""

    certificate: pathlib.Path
    key: pathlib.Path
    token_file: pathlib.Path
    tokens: dict[str, str]

    def kubeconfig(self, user: str, url: str) -> pathlib.Path:
        """Writes a kubeconfig with which `user` reaches the API server at `url`."""
        path = self.key.with_name(user.removeprefix("system:") + ".kubeconfig")
        return write_kubeconfig(path, url, token=self.tokens[user], authority=self.certificate)


def write_kubeconfig(
    path: pathlib.Path, url: str, *, token: str = "", authority: pathlib.Path | None = None
) -> pathlib.Path:
    """A kubeconfig of one context; token and authority as far as the server needs them."""
    server = {"server": url} | ({"certificate-authority": str(authority)} if authority else {})
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "test", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.write_text(yaml.safe_dump(content))
    path.chmod(0o600)
    return path


def make_keys(folder: pathlib.Path, addresses: list[str]) -> Keys:
    """Makes everything in `folder`; the certificate is good for two days and for `addresses`."""
    certificate, key = folder / "server.crt", folder / "server.key"
    names = ",".join([f"DNS:{n}" for n in NAMES] + [f"IP:{address}" for address in addresses])
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=kube-apiserver"]
    command += ["-keyout", str(key), "-out", str(certificate), "-addext", f"subjectAltName={names}"]
    command += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    tokens = {user: secrets.token_urlsafe(24) for user in USERS}
    token_file = folder / "tokens.csv"
    with token_file.open("w", newline="") as file:
        rows = ([tokens[user], user, user, *groups] for user, groups in USERS.items())
        csv.writer(file).writerows(rows)
    token_file.chmod(0o600)
    return Keys(certificate, key, token_file, tokens)
