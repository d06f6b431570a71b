"""Where the cluster's programs are.

In this order: TEST_ASSET_KUBE_APISERVER and the like, the folder KUBEBUILDER_ASSETS (both as in
envtest), and what `make tools` built. kubectl and helm may also come from PATH.
"""

import functools
import os
import pathlib
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
CLIENTS = ("kubectl", "helm")


class ToolMissing(Exception):
    """A program that the cluster needs is nowhere; the message says how to get it."""


@functools.cache
def built() -> pathlib.Path:
    """The folder that `make tools` fills."""
    script = REPOSITORY / "tools" / "build.py"
    answer = subprocess.check_output([sys.executable, str(script), "--where"], text=True)
    return pathlib.Path(answer.strip())


def candidates(name: str) -> list[pathlib.Path]:
    """Every place where `name` may be, best first."""
    places = []
    if single := os.environ.get("TEST_ASSET_" + name.replace("-", "_").upper()):
        places.append(pathlib.Path(single))
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        places.append(pathlib.Path(assets) / name)
    places.append(built() / name)
    if name in CLIENTS and (installed := shutil.which(name)):
        places.append(pathlib.Path(installed))
    return places


def find(name: str) -> pathlib.Path:
    """The program called `name`; ToolMissing if there is none."""
    for place in candidates(name):
        if place.is_file():
            return place
    raise ToolMissing(
        f"{name} is not built: run `make tools`, or set KUBEBUILDER_ASSETS to a folder that has it"
    )


def existing_cluster() -> bool:
    """True if the tests shall use the cluster of the current kubeconfig."""
    return os.environ.get("USE_EXISTING_CLUSTER", "").lower() in {"1", "true", "yes"}


def why_no_cluster() -> str | None:
    """The reason why no cluster can be had here, or None if one can."""
    if not existing_cluster() and not shutil.which("openssl"):
        return "openssl is not installed: it makes the API server's key (apt-get install openssl)"
    try:
        for name in CLIENTS[:1] if existing_cluster() else CONTROL_PLANE:
            find(name)
    except ToolMissing as error:
        return str(error)
    return None
