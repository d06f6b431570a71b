"""Which machines serve a request: join the shortest queue, in both pools at once.

Paper section IV-A. A queue's length is its pending tokens by the caller's books; both machines are chosen
together so that the KV transfer can overlap with the prompt, and only machines of one revision are paired.
Machines of role "mixed" hold either phase or both, behind dedicated ones of equal length. Ties go by name.

Queue thresholds that lend machines between the pools (8,192 pending tokens in the reference simulator) would
refuse a pick in `_prompt` and `_token` before `_degraded` decides; this version never refuses for length.
"""

from collections.abc import Collection, Iterable, Sequence

from runtime.policy.work import Degraded, MachineLoad, NoRoute, Request, Route

NONE_AVOIDED: frozenset[str] = frozenset()


def route(
    request: Request,
    machines: Sequence[MachineLoad],
    *,
    degraded: Degraded = "fail",
    avoid: Collection[str] = NONE_AVOIDED,
) -> Route | NoRoute:
    """Where the request's two phases run, or why they can't now.

    `degraded` says what an empty pool means: "mixed" serves the request whole on whatever machine remains,
    anything else refuses. `avoid` names machines that failed this request before: last choice in their pool.
    A request with one token to produce needs no token machine."""
    if not machines:
        return NoRoute("no machine is ready: the prompt pool and the token pool are empty")
    revisions: dict[str, list[MachineLoad]] = {}
    for machine in machines:
        revisions.setdefault(machine.revision, []).append(machine)
    pairs = [pair for alike in revisions.values() if (pair := _pair(request, alike, avoid))]
    if not pairs:
        return _degraded(request, machines, degraded, avoid)
    prompt, token = min(pairs, key=lambda pair: _pair_key(pair, avoid)) if len(pairs) > 1 else pairs[0]
    return Route(prompt.name, token.name, _why(request, prompt, token))


def _pair(
    request: Request, machines: Sequence[MachineLoad], avoid: Collection[str]
) -> tuple[MachineLoad, MachineLoad] | None:
    """The best prompt and token machine of one revision."""
    prompt = _prompt(request, machines, avoid)
    token = prompt if request.output_tokens <= 1 else _token(request, machines, avoid)
    return (prompt, token) if prompt and token else None


def _pair_key(pair: tuple[MachineLoad, MachineLoad], avoid: Collection[str]) -> tuple[bool, int, str, str]:
    """Between revisions: the pair with the fewest pending tokens."""
    prompt, token = pair
    pending = sum(machine.pending_tokens for machine in set(pair))
    return prompt.name in avoid or token.name in avoid, pending, prompt.name, token.name


def _prompt(request: Request, machines: Iterable[MachineLoad], avoid: Collection[str]) -> MachineLoad | None:
    """The shortest queue among machines that may run prompts and could ever hold this one's KV."""
    fitting = (m for m in machines if m.role != "token" and _fits(m, request.prompt_tokens + 1))
    return min(fitting, key=lambda machine: _queue_key(machine, avoid), default=None)


def _token(request: Request, machines: Iterable[MachineLoad], avoid: Collection[str]) -> MachineLoad | None:
    """The shortest queue among machines that may run tokens; those with KV room now come first, for a machine
    without makes the request wait."""
    tokens = request.prompt_tokens + request.output_tokens
    fitting = (m for m in machines if m.role != "prompt" and _fits(m, tokens))
    return min(fitting, key=lambda m: _room_key(m, tokens, avoid), default=None)


def _degraded(
    request: Request, machines: Sequence[MachineLoad], degraded: Degraded, avoid: Collection[str]
) -> Route | NoRoute:
    """No revision has both phases: the whole request on one machine, if that is wanted."""
    why = _missing(request, machines)
    tokens = request.prompt_tokens + request.output_tokens
    fitting = [m for m in machines if _fits(m, tokens)]
    if degraded != "mixed" or not fitting:
        return NoRoute(why)
    machine = min(fitting, key=lambda m: _room_key(m, tokens, avoid))
    return Route(machine.name, machine.name, f"{why}; degraded to whole on {_queue(machine)}")


def _missing(request: Request, machines: Sequence[MachineLoad]) -> str:
    prompt = {m.revision for m in machines if m.role != "token"}
    token = {m.revision for m in machines if m.role != "prompt"}
    if not prompt:
        return "the prompt pool is empty"
    if not token:
        return "the token pool is empty"
    if not prompt & token:
        return (
            f"no prompt machine (revision {', '.join(sorted(prompt))}) and token machine "
            f"(revision {', '.join(sorted(token))}) have a revision in common"
        )
    return (
        f"no machine can hold the KV-cache of {request.prompt_tokens} prompt "
        f"and {request.output_tokens} output tokens"
    )


def _queue_key(machine: MachineLoad, avoid: Collection[str]) -> tuple[bool, int, bool, str]:
    return machine.name in avoid, machine.pending_tokens, machine.role == "mixed", machine.name


def _room_key(machine: MachineLoad, tokens: int, avoid: Collection[str]) -> tuple[bool, bool, int, bool, str]:
    full = bool(machine.kv_tokens_total) and machine.kv_tokens + tokens > machine.kv_tokens_total
    return machine.name in avoid, full, machine.pending_tokens, machine.role == "mixed", machine.name


def _fits(machine: MachineLoad, tokens: int) -> bool:
    return not machine.kv_tokens_total or tokens <= machine.kv_tokens_total


def _why(request: Request, prompt: MachineLoad, token: MachineLoad) -> str:
    if request.output_tokens <= 1:
        return f"one token to produce: whole on {_queue(prompt)}"
    if prompt.name == token.name:
        return f"shortest queue of both pools: whole on {_queue(prompt)}"
    return f"shortest queues: prompt on {_queue(prompt)}, tokens on {_queue(token)}"


def _queue(machine: MachineLoad) -> str:
    return f"{machine.name} ({machine.pending_tokens} tokens pending)"
