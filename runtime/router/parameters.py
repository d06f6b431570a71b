"""The bodies of the two endpoints: which parameters there are, what they may be, and which are refused.

Nothing that would change the answer is ever ignored: it is either done or refused by name. Parameters that
change nothing about the answer are taken and left alone. `null` means absent, as in the OpenAI API.
"""

import difflib
import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from runtime.router.problems import Problem

INT64 = 2**63

Count = Annotated[int, Meta(ge=1, le=2**31 - 1, description="a whole number from 1 to 2147483647")]
Penalty = Annotated[float, Meta(ge=-2, le=2, description="a number from -2 to 2")]
Share = Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")]
TopLogprobs = Annotated[int, Meta(ge=0, le=20, description="a whole number from 0 to 20")]
Bias = Annotated[float, Meta(ge=-100, le=100)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False


class Sampled(Struct, kw_only=True):
    """What both endpoints take."""

    model: str
    max_tokens: Count | UnsetType = UNSET
    temperature: Annotated[float, Meta(ge=0, le=2, description="a number from 0 to 2")] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1, description="a number above 0, at most 1")] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1, description="a whole number; 0 or -1 for all")] = 0
    min_p: Share = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=10, description="a number above 0, at most 10")] = 1.0
    logit_bias: Annotated[
        dict[int, Bias], Meta(description="an object of token id to a number from -100 to 100")
    ] = msgspec.field(default_factory=dict)
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1, description="a whole number from 0")] = 0
    stop: Annotated[
        StopString | Annotated[list[StopString], Meta(max_length=4)],
        Meta(description="a string or up to 4 strings of 1 to 1000 characters each"),
    ] = msgspec.field(default_factory=list)
    stop_token_ids: Annotated[list[int], Meta(max_length=64, description="a list of up to 64 token ids")] = (
        msgspec.field(default_factory=list)
    )
    ignore_eos: bool = False
    seed: Annotated[int, Meta(ge=-INT64, le=INT64 - 1, description="a 64-bit whole number")] | UnsetType = (
        UNSET
    )
    n: Annotated[int, Meta(ge=1, le=128, description="a whole number from 1 to 128")] = 1
    stream: bool = False
    stream_options: StreamOptions | UnsetType = UNSET


class CompletionBody(Sampled, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Any
    logprobs: TopLogprobs | UnsetType = UNSET
    echo: bool = False


class ChatBody(Sampled, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Any], Meta(min_length=1, description="a list of one or more messages")]
    max_completion_tokens: Count | UnsetType = UNSET
    logprobs: bool = False
    top_logprobs: TopLogprobs | UnsetType = UNSET


Body = TypeVar("Body", CompletionBody, ChatBody)
Passes = Callable[[Any], bool]


def _never(value: Any) -> bool:
    return False


# Known to the API and not done here, with the values that ask for nothing.
REFUSED: Mapping[str, Passes] = {
    "tools": lambda value: value == [],
    "tool_choice": lambda value: value == "none",
    "functions": lambda value: value == [],
    "function_call": lambda value: value == "none",
    "response_format": lambda value: value == {"type": "text"},
    "best_of": lambda value: value == 1 and value is not True,
    "suffix": lambda value: value == "",
    "audio": _never,
    "modalities": lambda value: value == ["text"],
    "prediction": _never,
    "reasoning_effort": _never,
    "verbosity": _never,
    "web_search_options": _never,
    "service_tier": lambda value: value in ("auto", "default"),
}

# Change nothing about the answer.
HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "parallel_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)


def read_body(raw: bytes, kind: type[Body]) -> Body:
    """Parse and check a body. Raises Problem, naming the parameter and what it may be."""
    given = {name: value for name, value in _object(raw).items() if value is not None}
    fields = _fields(kind)
    for name, value in given.items():
        if name not in fields:
            _check_foreign(name, value, known=fields)
    try:
        return msgspec.convert(given, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _problem(str(error), kind) from None


@functools.cache
def _fields(kind: type[Struct]) -> Mapping[str, str | None]:
    """The parameters of an endpoint, and what each may be."""
    return {field.name: _described(field.type) for field in msgspec.inspect.type_info(kind).fields}  # type: ignore[attr-defined]


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        _name_infinite(raw)
        raise Problem(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Problem("the body must be a JSON object")
    return body


def _name_infinite(raw: bytes) -> None:
    """Some clients write NaN, Infinity or 1e999, which JSON doesn't have: say which parameter it is."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return
    for name, value in body.items() if isinstance(body, dict) else ():
        if _holds_infinite(value):
            message = f"{name} must hold finite numbers; JSON has no NaN or Infinity"
            raise Problem(message, param=name, reason="invalid_value")


def _holds_infinite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_holds_infinite, inner))


def _check_foreign(name: str, value: Any, *, known: Mapping[str, object]) -> None:
    if name in HARMLESS:
        return
    if name in REFUSED:
        if not REFUSED[name](value):
            raise Problem(
                f"{name} is not supported; leave it out", param=name, reason="unsupported_parameter"
            )
        return
    close = difflib.get_close_matches(name[:64], [*known, *HARMLESS], n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise Problem(f"unknown parameter {name}{hint}", param=name, reason="unknown_parameter")


_PATH = re.compile(r" - at .*`\$\.?([^`]*)`$")


def _problem(error: str, kind: type[Struct]) -> Problem:
    """msgspec's sentence, with the parameter's name and its whole range."""
    missing = re.search(r"missing required field `(\w+)`", error)
    if missing:
        return Problem(f"{missing[1]} is required", param=missing[1], reason="missing_required_parameter")
    path = found[1] if (found := _PATH.search(error)) else ""
    name = re.split(r"[.\[]", path)[0]
    wanted = _fields(kind).get(name)
    message = (
        f"{name} must be {wanted}" if wanted else f"{path or 'the body'}: {_PATH.sub('', error).lower()}"
    )
    return Problem(message, param=name or None, reason="invalid_value")


def _described(kind: Any) -> str | None:
    if isinstance(kind, msgspec.inspect.Metadata):
        return str((kind.extra_json_schema or {}).get("description") or "") or None
    if isinstance(kind, msgspec.inspect.BoolType):
        return "true or false"
    if isinstance(kind, msgspec.inspect.StrType):
        return "a string"
    options = getattr(kind, "types", ())
    return next((text for option in options if (text := _described(option))), None)
