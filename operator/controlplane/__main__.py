"""`python -m controlplane COMMAND`: the operator and its previews.

run        serve the deployments of a cluster
crds       apply the CRDs, as the chart's upgrade hook
cleanup    take the operator's labels off all nodes, before it is uninstalled
probe      send a deployment one request and see that it is split
render     print what would be applied for a file
diff       say what a changed file would do, and which pods restart
generate   write the CRDs, RBAC, chart schema and reference pages, or check them

Exit status 2: something that was given cannot be used.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from controlplane.api import InvalidDeployment
from controlplane.errors import ControlPlaneError
from controlplane.settings import OperatorSettings
from runtime import log
from runtime.kubernetes import find_access


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="controlplane", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="serve the deployments of a cluster")
    run.add_argument("--settings", type=Path, help="an OperatorSettings file (YAML)")
    run.add_argument("--observe", default="", help="address of /healthz and /metrics, such as 0.0.0.0:8080")
    commands.add_parser("crds", help="apply the CRDs")
    cleanup = commands.add_parser("cleanup", help="take the operator's labels off all nodes")
    cleanup.add_argument("--crds", action="store_true", help="delete the CRDs and all deployments, too")
    probe = commands.add_parser("probe", help="send a deployment one request and see that it is split")
    probe.add_argument("deployment", nargs="?", default="", help="NAMESPACE/NAME; none: look at the API only")
    render = commands.add_parser("render", help="print what would be applied for a file")
    render.add_argument("file", type=Path)
    diff = commands.add_parser("diff", help="say what a changed file would do")
    diff.add_argument("old", type=Path)
    diff.add_argument("new", type=Path)
    generate = commands.add_parser("generate", help="write what follows from the models and tables")
    generate.add_argument("--check", action="store_true", help="write nothing; fail if something is stale")
    options = parser.parse_args()
    try:
        return _COMMANDS[options.command](options)
    except (ControlPlaneError, InvalidDeployment, ValueError, OSError) as error:
        print(f"controlplane: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    from controlplane.serve import run

    settings = OperatorSettings.read(options.settings) if options.settings else OperatorSettings()
    log.set_up(program="operator")
    return asyncio.run(run(find_access(), settings, observe=options.observe))


def _cleanup(options: argparse.Namespace) -> int:
    from controlplane.cleanup import cleanup

    log.set_up(program="cleanup")
    return asyncio.run(cleanup(find_access(), crds=options.crds))


def _crds(options: argparse.Namespace) -> int:
    from controlplane.cleanup import apply_crds

    return asyncio.run(apply_crds(find_access()))


def _probe(options: argparse.Namespace) -> int:
    from controlplane.probe import probe

    print(asyncio.run(probe(find_access(), options.deployment)))
    return 0


def _render(options: argparse.Namespace) -> int:
    from controlplane.preview import print_render

    print_render(options.file, Console())
    return 0


def _diff(options: argparse.Namespace) -> int:
    from controlplane.preview import print_diff

    print_diff(options.old, options.new, Console())
    return 0


def _generate(options: argparse.Namespace) -> int:
    from controlplane import generate

    root = Path(__file__).resolve().parents[2]
    if not options.check:
        generate.write(root)
        return 0
    stale = generate.check(root)
    for path in stale:
        print(f"stale: {path}; run python -m controlplane generate", file=sys.stderr)
    return int(bool(stale))


_COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "crds": _crds,
    "cleanup": _cleanup,
    "probe": _probe,
    "render": _render,
    "diff": _diff,
    "generate": _generate,
}

if __name__ == "__main__":
    sys.exit(main())
