"""Fetching from a stand-in of the hub: what comes, what does not, and what a person is told."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

OLD, NEW = "a" * 40, "b" * 40
TOKEN = "hf_sesame"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"new": true}',
    "tokenizer_config.json": b"{}",
    "generation_config.json": b"{}",
    "model-00001-of-00001.safetensors": b"w" * 5000,
    "consolidated.00.safetensors": b"c" * 5000,
    "pytorch_model.bin": b"b" * 5000,
    "original/params.json": b"{}",
    "README.md": b"words",
}


class Hub(http.server.ThreadingHTTPServer):
    """Serves org/m at two commits. `asked` are the files that were sent, oldest first; `moves_on`: the branch
    goes to the other commit once somebody has asked for it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.commits = {OLD: FILES | {"tokenizer.json": b"{}"}, NEW: dict(FILES)}
        self.branches = {"main": NEW, "v1": OLD, NEW: NEW, OLD: OLD}
        self.private = self.moves_on = False
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None: ...

    def _answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        if self.server.private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif found := re.fullmatch(r"/api/models/org/m(?:/(revision|tree)/([^/]+))?", path):
            self._api(found[1] or "revision", self.server.branches.get(found[2] or "main"))
        elif found := re.fullmatch(r"/org/m/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2], body=body)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _api(self, what: str, commit: str | None) -> None:
        if commit is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        files = self.server.commits[commit]
        if what == "tree":
            tree = [{"type": "file", "path": n, "size": len(d), "oid": _etag(d)} for n, d in files.items()]
            self._send(200, json.dumps(tree).encode())
            return
        if self.server.moves_on:
            self.server.branches["main"] = OLD
        info = {"id": "org/m", "sha": commit, "siblings": [{"rfilename": name} for name in files]}
        self._send(200, json.dumps(info).encode())

    def _file(self, commit: str, name: str, *, body: bool) -> None:
        data = self.server.commits[commit][name]
        if body:
            self.server.asked.append(f"{commit[0]}:{name}")
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        self._send(200, data, headers, body=body)

    def _send(
        self, status: int, data: bytes, headers: dict[str, str] | None = None, *, body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(data)


def _etag(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.05,))
        thread.start()
        yield hub
        hub.shutdown()
        thread.join(5)


def fetch(
    url: str, folder: Path, *options: str, repository: str = "org/m", token: str = ""
) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": url, "HF_HOME": str(folder.parent / "home"), "NO_PROXY": "*"}
    environment |= {"HF_TOKEN": token} if token else {}
    command = [sys.executable, "-P", "-m", "runtime.fetch", repository, "--to", str(folder), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def test_a_machine_gets_the_weights_once_in_one_form(hub: Hub, tmp_path: Path) -> None:
    done = fetch(hub.url, tmp_path / "model")
    assert done.returncode == 0, done.stderr
    tokenizer = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert names(tmp_path / "model") == tokenizer | {"model-00001-of-00001.safetensors"}
    assert (tmp_path / "model/model-00001-of-00001.safetensors").read_bytes() == b"w" * 5000
    assert {asked[0] for asked in hub.asked} == {"b"}
    hub.asked.clear()
    assert fetch(hub.url, tmp_path / "model").returncode == 0
    assert hub.asked == []


def test_a_router_gets_the_tokenizer_of_the_revision(hub: Hub, tmp_path: Path) -> None:
    done = fetch(hub.url, tmp_path / "model", "--tokenizer", "--revision", "v1")
    assert done.returncode == 0, done.stderr
    assert "safetensors" not in " ".join(hub.asked)
    assert (tmp_path / "model/tokenizer.json").read_bytes() == b"{}"
    assert OLD in done.stdout + done.stderr


def test_a_branch_that_moves_meanwhile_does_not_mix_commits(hub: Hub, tmp_path: Path) -> None:
    """Files are asked for by the commit that the branch named first."""
    hub.moves_on = True
    assert fetch(hub.url, tmp_path / "model").returncode == 0
    assert hub.branches["main"] == OLD
    assert {asked[0] for asked in hub.asked} == {"b"}


def test_a_private_repository_needs_the_token_which_is_never_shown(hub: Hub, tmp_path: Path) -> None:
    hub.private = True
    refused = fetch(hub.url, tmp_path / "model")
    assert refused.returncode == 2
    assert "tokenSecret" in refused.stderr
    done = fetch(hub.url, tmp_path / "model", token=TOKEN)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "repository", "told"),
    [
        (("--revision", "v9"), "org/m", "no such repository or revision"),
        ((), "org/none", "no such repository or revision"),
        ((), "no/such/form", "no/such/form"),
    ],
)
def test_what_is_not_there_is_one_sentence(
    hub: Hub, tmp_path: Path, options: tuple[str, ...], repository: str, told: str
) -> None:
    done = fetch(hub.url, tmp_path / "model", *options, repository=repository)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("gone", "options", "told"),
    [
        ("model-00001-of-00001.safetensors", (), "no safetensors"),
        ("tokenizer.json", ("--tokenizer",), "no tokenizer.json"),
    ],
)
def test_a_repository_without_what_is_needed_is_refused(
    hub: Hub, tmp_path: Path, gone: str, options: tuple[str, ...], told: str
) -> None:
    del hub.commits[NEW][gone]
    done = fetch(hub.url, tmp_path / "model", *options)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_hub_that_is_away_is_one_sentence(tmp_path: Path) -> None:
    done = fetch("http://127.0.0.1:1", tmp_path / "model", "--tokenizer")
    assert done.returncode == 2
    assert "org/m@main" in done.stderr
    assert "Traceback" not in done.stderr
