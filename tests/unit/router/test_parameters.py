"""Bodies: every parameter is done, refused by name, or known to be harmless. Nothing is ignored."""

import json
from typing import Any

import pytest
from msgspec import UNSET

from runtime.router.parameters import HARMLESS, REFUSED, ChatBody, CompletionBody, read_body
from runtime.router.problems import Problem

COMPLETION = {"model": "m", "prompt": "x"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
BIG = 10**30


def completion(**given: Any) -> CompletionBody:
    return read_body(json.dumps(COMPLETION | given).encode(), CompletionBody)


def chat(**given: Any) -> ChatBody:
    return read_body(json.dumps(CHAT | given).encode(), ChatBody)


def problem(**given: Any) -> Problem:
    with pytest.raises(Problem) as raised:
        completion(**given)
    return raised.value


def test_defaults_are_the_apis() -> None:
    body = completion()
    assert (body.temperature, body.top_p, body.top_k, body.n, body.stream) == (1.0, 1.0, 0, 1, False)
    assert (body.max_tokens, body.seed, body.logprobs) == (UNSET, UNSET, UNSET)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"temperature": -0.1}, "a number from 0 to 2"),
        ({"temperature": 2.1}, "a number from 0 to 2"),
        ({"temperature": "hot"}, "a number from 0 to 2"),
        ({"temperature": True}, "a number from 0 to 2"),
        ({"top_p": 0}, "a number above 0, at most 1"),
        ({"top_p": 1.01}, "a number above 0, at most 1"),
        ({"top_k": -2}, "a whole number; 0 or -1 for all"),
        ({"top_k": 1.5}, "a whole number; 0 or -1 for all"),
        ({"min_p": 1.1}, "a number from 0 to 1"),
        ({"presence_penalty": -2.1}, "a number from -2 to 2"),
        ({"frequency_penalty": 2.1}, "a number from -2 to 2"),
        ({"repetition_penalty": 0}, "a number above 0, at most 10"),
        ({"logit_bias": {"5": 100.5}}, "an object of token id to a number from -100 to 100"),
        ({"logit_bias": {"five": 1}}, "an object of token id to a number from -100 to 100"),
        ({"logit_bias": []}, "an object of token id to a number from -100 to 100"),
        ({"max_tokens": 0}, "a whole number from 1 to 2147483647"),
        ({"max_tokens": -1}, "a whole number from 1 to 2147483647"),
        ({"max_tokens": 16.0}, "a whole number from 1 to 2147483647"),
        ({"max_tokens": BIG}, "a whole number from 1 to 2147483647"),
        ({"min_tokens": -1}, "a whole number from 0"),
        ({"n": 0}, "a whole number from 1 to 128"),
        ({"n": 129}, "a whole number from 1 to 128"),
        ({"n": BIG}, "a whole number from 1 to 128"),
        ({"seed": 2**63}, "a 64-bit whole number"),
        ({"stop": ""}, "a string or up to 4 strings of 1 to 1000 characters each"),
        ({"stop": ["a"] * 5}, "a string or up to 4 strings of 1 to 1000 characters each"),
        ({"stop": ["a" * 1001]}, "a string or up to 4 strings of 1 to 1000 characters each"),
        ({"stop_token_ids": ["a"]}, "a list of up to 64 token ids"),
        ({"stop_token_ids": list(range(65))}, "a list of up to 64 token ids"),
        ({"logprobs": 21}, "a whole number from 0 to 20"),
        ({"logprobs": True}, "a whole number from 0 to 20"),
        ({"stream": "yes"}, "true or false"),
        ({"echo": 1}, "true or false"),
        ({"model": 7}, "a string"),
    ],
    ids=str,
)
def test_what_is_out_of_range_is_named_with_its_range(given: dict[str, Any], wanted: str) -> None:
    found = problem(**given)
    (name,) = given
    assert found.message == f"{name} must be {wanted}"
    assert (found.param, found.reason, found.status) == (name, "invalid_value", 400)


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0},
        {"temperature": 2},
        {"top_p": 1},
        {"top_k": -1},
        {"min_p": 0},
        {"presence_penalty": -2},
        {"repetition_penalty": 10},
        {"logit_bias": {"5": -100, "6": 100}},
        {"max_tokens": 1},
        {"n": 128},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"stop": ["a", "b", "c", "d"]},
        {"logprobs": 0},
        {"logprobs": 20},
        {"stop_token_ids": [1, 2]},
        {"ignore_eos": True},
        {"echo": True},
        {"min_tokens": 0},
    ],
    ids=str,
)
def test_the_ends_of_every_range_are_taken(given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    expected = {int(id): bias for id, bias in value.items()} if name == "logit_bias" else value
    assert getattr(completion(**given), name) == expected


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["temperature", "top_p", "presence_penalty"])
def test_numbers_that_json_does_not_have_are_named(name: str, number: float) -> None:
    found = problem(**{name: number})
    assert found.param == name
    assert "NaN or Infinity" in found.message


def test_a_number_that_json_does_not_have_is_found_inside_a_parameter() -> None:
    found = problem(logit_bias={"5": float("nan")})
    assert found.param == "logit_bias"


def test_a_number_beyond_all_floats_is_named() -> None:
    with pytest.raises(Problem, match="temperature must hold finite numbers"):
        read_body(b'{"model": "m", "prompt": "x", "temperature": 1e999}', CompletionBody)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a": NaN'])
def test_what_is_not_json_says_so(raw: bytes) -> None:
    with pytest.raises(Problem, match="the body is not valid JSON"):
        read_body(raw, CompletionBody)


@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"3", b"null"])
def test_what_is_no_object_says_so(raw: bytes) -> None:
    with pytest.raises(Problem, match="must be a JSON object"):
        read_body(raw, CompletionBody)


@pytest.mark.parametrize("missing", ["model", "prompt"])
@pytest.mark.parametrize("null", [True, False])
def test_what_is_required_is_named_when_missing_or_null(missing: str, null: bool) -> None:
    given: dict[str, Any] = {**COMPLETION, missing: None}
    if not null:
        del given[missing]
    with pytest.raises(Problem) as raised:
        read_body(json.dumps(given).encode(), CompletionBody)
    assert (raised.value.param, raised.value.reason) == (missing, "missing_required_parameter")


def test_null_means_absent() -> None:
    assert completion(temperature=None, stop=None, tools=None, nonsense=None).temperature == 1.0


CHANGES_THE_ANSWER: dict[str, Any] = {
    "tools": [{"type": "function"}],
    "tool_choice": "auto",
    "functions": [{}],
    "function_call": "auto",
    "response_format": {"type": "json_object"},
    "best_of": 2,
    "suffix": "end",
    "audio": {},
    "modalities": ["text", "audio"],
    "prediction": {},
    "reasoning_effort": "low",
    "verbosity": "low",
    "web_search_options": {},
    "service_tier": "flex",
}
ASKS_FOR_NOTHING: dict[str, Any] = {
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "best_of": 1,
    "suffix": "",
    "modalities": ["text"],
    "service_tier": "auto",
}


def test_every_refused_parameter_is_in_the_table() -> None:
    assert set(CHANGES_THE_ANSWER) == set(REFUSED)


@pytest.mark.parametrize("name", CHANGES_THE_ANSWER)
def test_a_parameter_that_would_change_the_answer_is_refused_by_name(name: str) -> None:
    with pytest.raises(Problem, match=f"^{name} is not supported") as raised:
        chat(**{name: CHANGES_THE_ANSWER[name]})
    assert (raised.value.param, raised.value.reason) == (name, "unsupported_parameter")


@pytest.mark.parametrize("name", ASKS_FOR_NOTHING)
def test_the_value_that_asks_for_nothing_passes(name: str) -> None:
    assert chat(**{name: ASKS_FOR_NOTHING[name]}) == chat()


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_harmless_parameters_pass(name: str) -> None:
    assert chat(**{name: "x"}) == chat()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("temprature", "; did you mean temperature?"), ("max_token", "; did you mean max_tokens?"), ("qqq", "")],
)
def test_an_unknown_parameter_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    found = problem(**{name: 1})
    assert found.message == f"unknown parameter {name}{hint}"
    assert (found.param, found.reason) == (name, "unknown_parameter")


def test_parameters_of_the_other_endpoint_are_unknown() -> None:
    assert problem(messages=[]).param == "messages"
    with pytest.raises(Problem, match="unknown parameter echo"):
        chat(echo=True)


@pytest.mark.parametrize("given", [{"include_usage": 1}, {"colour": True}, []])
def test_stream_options_are_strict(given: Any) -> None:
    assert problem(stream=True, stream_options=given).param == "stream_options"


def test_chats_have_booleans_for_logprobs_and_a_count_beside() -> None:
    body = chat(logprobs=True, top_logprobs=3, max_completion_tokens=5)
    assert (body.logprobs, body.top_logprobs, body.max_completion_tokens) == (True, 3, 5)
    with pytest.raises(Problem, match="logprobs must be true or false"):
        chat(logprobs=3)
    with pytest.raises(Problem, match="messages must be a list of one or more messages"):
        chat(messages=[])
