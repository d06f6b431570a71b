"""Annotations that tell pretend nodes and pods how to behave.

Set them on a pod, or on a node for all its pods; the pod's word wins. They may change while the pod
lives. Anything not said is well behaved: pods run, are ready at once, and stop at once.
"""

import dataclasses
import enum
import json
from collections.abc import Mapping

PREFIX = "pretend.splitwise.dev/"
NODE_LABEL = PREFIX + "node"
NODE_STATE = PREFIX + "state"
RUN = PREFIX + "run"  # "process": run the containers' commands as local processes
ENTRYPOINTS = PREFIX + "entrypoints"  # JSON: part of an image's name to its entry point (a list)
READY = PREFIX + "ready"  # "false": running, never ready
READY_AFTER = PREFIX + "ready-after"  # seconds from start to ready
EXIT_CODE = PREFIX + "exit-code"  # containers exit with it, and again after each restart
EXIT_AFTER = PREFIX + "exit-after"  # seconds from start to that exit
WAITING = PREFIX + "waiting"  # never started, for this reason: "ImagePullBackOff"
STOP_AFTER = PREFIX + "stop-after"  # seconds a container takes to stop when asked


class NodeState(enum.StrEnum):
    """What has become of a node.

    LOST: the machine is gone, with every process on it, and the control plane knows at once.
    UNREACHABLE: its network is gone; processes live on, and the control plane knows at once.
    SILENT: unreachable, but the control plane has to find out, as in life (about 15 seconds).
    """

    WELL = "well"
    LOST = "lost"
    UNREACHABLE = "unreachable"
    SILENT = "silent"


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """How the containers of one pod behave; times are in seconds."""

    process: bool = False
    entrypoints: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)
    ready: bool = True
    ready_after: float = 0.0
    exit_code: int | None = None
    exit_after: float = 0.0
    waiting: str = ""
    stop_after: float = 0.0


def script(node: Mapping[str, str], pod: Mapping[str, str]) -> Script:
    """The script that the annotations of a node and of a pod on it amount to."""
    said = {**node, **pod}
    exit_code = said.get(EXIT_CODE, "")
    return Script(
        process=said.get(RUN, "") == "process",
        entrypoints=json.loads(said.get(ENTRYPOINTS, "{}")),
        ready=said.get(READY, "true") != "false",
        ready_after=float(said.get(READY_AFTER, "0")),
        exit_code=int(exit_code) if exit_code else None,
        exit_after=float(said.get(EXIT_AFTER, "0")),
        waiting=said.get(WAITING, ""),
        stop_after=float(said.get(STOP_AFTER, "0")),
    )


def node_state(annotations: Mapping[str, str]) -> NodeState:
    return NodeState(annotations.get(NODE_STATE, "well"))
