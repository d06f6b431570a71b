"""Where the API server is found."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime import kubernetes
from runtime.kubernetes import NoAccess, find_access, from_kubeconfig


def kubeconfig(folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / "config"
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "ns"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://k:1"} | cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def test_tokens_and_certificates_inline_or_in_files(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("authority")
    (tmp_path / "token").write_text("from a file\n")
    encoded = base64.b64encode(b"certificate").decode()
    user = {"tokenFile": "token", "client-certificate-data": encoded, "client-key-data": encoded}
    access = from_kubeconfig(kubeconfig(tmp_path, user, **{"certificate-authority": "ca.crt"}))
    assert (access.server, access.namespace) == ("http://k:1", "ns")
    assert (access.authority, access.certificate) == ("authority", "certificate")
    assert access.bearer() == "from a file"
    (tmp_path / "token").write_text("renewed")
    assert access.bearer() == "renewed"
    assert access.tls() is None


def test_plugins_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoAccess, match="plugins are not supported"):
        from_kubeconfig(kubeconfig(tmp_path, {"exec": {"command": "x"}}))


def test_what_is_no_kubeconfig_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("nothing: here")
    with pytest.raises(NoAccess, match=str(path)):
        from_kubeconfig(path)


def test_secrets_do_not_show(tmp_path: Path) -> None:
    access = from_kubeconfig(kubeconfig(tmp_path, {"token": "very-secret"}))
    assert "very-secret" not in repr(access)


def test_the_environment_goes_before_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "account"
    account.mkdir()
    for name, text in (("token", "pod"), ("namespace", "mine\n"), ("ca.crt", "authority")):
        (account / name).write_text(text)
    monkeypatch.setattr(kubernetes, "ACCOUNT", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    access = find_access()
    assert (access.server, access.namespace, access.bearer()) == ("https://10.0.0.1:443", "mine", "pod")
    monkeypatch.setenv("POD_NAMESPACE", "other")
    assert find_access().namespace == "other"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, {"token": "t"})))
    assert find_access().server == "http://k:1"


def test_nothing_at_all_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NoAccess, match="set KUBECONFIG"):
        find_access()
