"""Writes the `replace` lines that let a Go module build one release of Kubernetes.

`k8s.io/kubernetes` requires its own staging modules at v0.0.0, a version nobody publishes. A module
that builds its commands has to replace each of them by the release cut from the same commit:
v0.36.3 for Kubernetes v1.36.3. Run it in `tools/kubernetes`: `python3 ../pin.py v1.36.3`.
"""

import json
import pathlib
import re
import subprocess
import sys

UNPUBLISHED = re.compile(r"^\s*(k8s\.io/[a-z0-9-]+) v0\.0\.0(?:\s|$)", re.MULTILINE)


def staging_modules(go_mod: str) -> list[str]:
    """The modules that a published `go.mod` of Kubernetes requires at v0.0.0, sorted."""
    return sorted(set(UNPUBLISHED.findall(go_mod)))


def staging_version(kubernetes: str) -> str:
    """`v1.36.3` -> `v0.36.3`; anything but a v1 release is an error."""
    if not re.fullmatch(r"v1\.\d+\.\d+", kubernetes):
        raise SystemExit(f"pin.py: expected a release such as v1.36.3, got {kubernetes!r}")
    return "v0." + kubernetes.removeprefix("v1.")


def main(kubernetes: str) -> None:
    version = staging_version(kubernetes)
    download = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{kubernetes}"]
    info = json.loads(subprocess.check_output(download))
    modules = staging_modules(pathlib.Path(info["GoMod"]).read_text())
    replace = [f"-replace={module}={module}@{version}" for module in modules]
    subprocess.check_call(["go", "mod", "edit", *replace])
    print(f"pinned {len(modules)} modules to {version}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python3 ../pin.py v1.36.3   (run inside tools/kubernetes)")
    main(sys.argv[1])
