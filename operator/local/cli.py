"""The `splitwise` command.

Exit status: 0 done, or ended as asked; 1 it cannot run, or failed while running; 2 the command line or the
file is wrong; 130 interrupted.
"""

import argparse
import asyncio
import math
import sys
from pathlib import Path

from rich.console import Console

from controlplane.api import InvalidDeployment
from controlplane.errors import ControlPlaneError
from local.rundir import RunFailed
from runtime.kubernetes import NoAccess


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="splitwise",
        description="Phase-split LLM inference: prompt machines, token machines, one endpoint.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="run a SplitwiseDeployment as local processes until Ctrl-C")
    up.add_argument("file", type=Path, metavar="FILE", help="YAML file with the deployment")
    up.add_argument("--port", type=int, help="port of the endpoint instead of the file's; 0 for any free one")
    up.add_argument(
        "--model", type=Path, metavar="PATH", help="weights to serve: a Hugging Face folder or a GGUF file"
    )
    up.add_argument(
        "--no-restart", action="store_true", help="end when a machine ends, instead of starting it again"
    )
    up.add_argument(
        "--deadline",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long it may take to get ready",
    )

    commands.add_parser("ps", help="what runs on this computer")

    logs = commands.add_parser("logs", help="print the logs of a running deployment")
    logs.add_argument(
        "name", nargs="?", metavar="NAME", help="one program, such as prompt-0; all if left out"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the deployment ends")
    _deployment(logs)

    down = commands.add_parser("down", help="end a running deployment")
    down.add_argument("deployment", nargs="?", metavar="DEPLOYMENT", help="its name, if several are up")

    chat = commands.add_parser("chat", help="talk to a running deployment")
    chat.add_argument("prompt", nargs="?", metavar="PROMPT", help="one question; a conversation if left out")
    chat.add_argument("--max-tokens", type=int, default=256, help="longest answer")
    _deployment(chat)

    render = commands.add_parser("render", help="print what would be applied to a cluster for a file")
    render.add_argument("file", type=Path, metavar="FILE", help="YAML file with the deployment")

    diff = commands.add_parser("diff", help="say what a changed file would do, and which pods are replaced")
    diff.add_argument("old", type=Path, metavar="OLD", help="the file as it was")
    diff.add_argument("new", type=Path, metavar="NEW", help="the file as it shall be")

    status = commands.add_parser("status", help="how a deployment in a cluster stands")
    status.add_argument("name", metavar="NAME", help="name of the deployment")
    status.add_argument("-n", "--namespace", help="its namespace; the kubeconfig's if left out")

    commands.add_parser("demo", help="show on this computer that split answers equal unsplit ones")

    return top


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: write a number of seconds above 0")
    return seconds


def _deployment(command: argparse.ArgumentParser) -> None:
    command.add_argument("-d", "--deployment", metavar="NAME", help="which deployment, if several are up")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the value is the exit status."""
    options = parser().parse_args(arguments)
    try:
        return _run(options, Console())
    except InvalidDeployment as error:
        print(f"splitwise: {error}", file=sys.stderr)
        return 2
    except (RunFailed, ControlPlaneError, NoAccess) as error:
        print(f"splitwise: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace, console: Console) -> int:
    match options.command:
        case "up":
            from local.serve import Options
            from local.up import up

            how = Options(port=options.port, restart=not options.no_restart, deadline=options.deadline)
            up(options.file, model=options.model, options=how, console=console)
        case "ps":
            from local.control import ps

            ps(console)
        case "logs":
            from local.control import logs

            logs(options.deployment, options.name, follow=options.follow, console=console)
        case "down":
            from local.control import down

            down(options.deployment, console=console)
        case "chat":
            from local.chat import chat
            from local.control import chosen

            record = chosen(options.deployment)
            chat(
                record.endpoint, record.model, options.prompt, max_tokens=options.max_tokens, console=console
            )
        case "render" | "diff" | "status":
            _cluster(options, console)
        case "demo":
            from local.demo import EXAMPLES, demo

            return demo(EXAMPLES, console=console)
    return 0


def _cluster(options: argparse.Namespace, console: Console) -> None:
    """Commands about deployments in a cluster; only `status` talks to one."""
    from controlplane import preview

    match options.command:
        case "render":
            preview.print_render(options.file, console)
        case "diff":
            preview.print_diff(options.old, options.new, console)
        case "status":
            asyncio.run(preview.print_status(options.name, options.namespace, console))
