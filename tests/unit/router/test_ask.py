"""From bodies to token ids and sampling."""

import json
from typing import Any

import pytest

import tiny_llama
from runtime.router.ask import Ask, Reader, check_context
from runtime.router.problems import Problem
from runtime.tokenizer import ChatTemplate, Tokenizer


@pytest.fixture
def reader(tokenizer: Tokenizer) -> Reader:
    return Reader("tiny", tokenizer)


async def completion(reader: Reader, **given: Any) -> Ask:
    return await reader.completion(json.dumps({"model": "tiny", "prompt": "The wind"} | given).encode())


async def chat(reader: Reader, *messages: Any, **given: Any) -> Ask:
    said = list(messages) or [{"role": "user", "content": "Hi"}]
    return await reader.chat(json.dumps({"model": "tiny", "messages": said} | given).encode())


async def refused(reader: Reader, *messages: Any, **given: Any) -> Problem:
    with pytest.raises(Problem) as raised:
        await (chat(reader, *messages) if messages else completion(reader, **given))
    return raised.value


# ---- prompts


async def test_a_prompt_too_long_is_refused_before_the_next_is_encoded(
    reader: Reader, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = tokenizer.encode_aside

    async def noted(text: str, *, special: bool) -> list[int]:
        encoded.append(text[:3])
        return await encode(text, special=special)

    monkeypatch.setattr(tokenizer, "encode_aside", noted)
    problem = await refused(reader, prompt=["\x01" * (tokenizer.context_tokens + 1), "sea"])
    assert (problem.reason, problem.param) == ("context_length_exceeded", "prompt")
    assert encoded == ["\x01" * 3]


async def test_a_failure_quotes_only_so_much(reader: Reader) -> None:
    problem = await refused(reader, **{"x" * 100_000: 1})
    assert len(problem.message) <= 2000
    assert len(problem.param or "") <= 200


async def test_a_prompt_is_a_string_strings_token_ids_or_lists_of_them(
    reader: Reader, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("The wind")
    for prompt, expected in (
        ("The wind", [ids]),
        (["The wind", "sea"], [ids, tokenizer.encode("sea")]),
        (ids, [ids]),
        ([ids, [5]], [ids, [5]]),
    ):
        ask = await completion(reader, prompt=prompt, echo=True)
        assert [one.ids for one in ask.prompts] == expected
    assert ask.prompt_tokens == len(ids) + 1
    assert [one.text for one in ask.prompts] == ["The wind", tokenizer.decode([5])]


@pytest.mark.parametrize(
    "prompt", [[], [[]], "", ["a", ""], 5, {}, ["a", 5], [[5], 5], [5.5], [True], [["a"]], [[5], "a"]]
)
async def test_other_prompts_are_refused(reader: Reader, prompt: Any) -> None:
    assert (await refused(reader, prompt=prompt)).param == "prompt"


@pytest.mark.parametrize("id", [-1, tiny_llama.VOCABULARY, 10**12])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("prompt", lambda id: [1, id]),
        ("stop_token_ids", lambda id: [id]),
        ("logit_bias", lambda id: {str(id): 1}),
    ],
)
async def test_ids_outside_the_vocabulary_are_refused(reader: Reader, name: str, given: Any, id: int) -> None:
    found = await refused(reader, **{name: given(id)})
    assert found.param == name
    assert f"from 0 to {tiny_llama.VOCABULARY - 1}" in found.message


async def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(reader: Reader) -> None:
    found = await refused(reader, prompt="x" * (tiny_llama.LLAMA.context_tokens * 64 + 1))
    assert found.reason == "context_length_exceeded"


async def test_choices_are_bounded(reader: Reader) -> None:
    assert (await completion(reader, prompt=["a"] * 4, n=128)).choices == 512
    assert (await refused(reader, prompt=["a"] * 5, n=128)).param == "n"


# ---- sampling


async def test_sampling_is_passed_on(reader: Reader) -> None:
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
        "seed": 5,
        "max_tokens": 9,
    }
    ask = await completion(reader, **given, stop_token_ids=[3], logit_bias={"5": 2})
    for name, value in given.items():
        assert getattr(ask.sampling, name) == value
    assert ask.sampling.stop_token_ids == (3,)
    assert ask.sampling.logit_bias == {5: 2}
    assert ask.sampling.logprobs == -1
    assert (await completion(reader, top_k=-1)).sampling.top_k == 0


async def test_each_choice_has_its_own_seed_and_prompt(reader: Reader) -> None:
    ask = await completion(reader, prompt=[[5], [6]], n=2, seed=40)
    assert [ask.sampling_of(n, 100).seed for n in range(4)] == [40, 41, 42, 43]
    assert [ask.prompt_of(n).ids for n in range(4)] == [[5], [5], [6], [6]]


async def test_seeds_are_drawn_where_none_is_given_and_never_negative(reader: Reader) -> None:
    assert (await completion(reader)).sampling.seed != (await completion(reader)).sampling.seed
    assert (await completion(reader, seed=-1)).sampling.seed == 2**63 - 1
    assert (await completion(reader, seed=2**63 - 1)).sampling_of(1, 100).seed == 0


@pytest.mark.fault("STREAM-2")
async def test_max_tokens_default_to_16_or_to_what_the_context_leaves(reader: Reader) -> None:
    assert (await completion(reader)).sampling_of(0, 100).max_tokens == 16
    ask = await chat(reader)
    assert ask.sampling_of(0, 100).max_tokens == 100 - ask.prompt_tokens
    assert (await chat(reader, max_tokens=3)).sampling.max_tokens == 3
    assert (await chat(reader, max_completion_tokens=4)).sampling.max_tokens == 4
    assert (await chat(reader, max_completion_tokens=4, max_tokens=4)).sampling.max_tokens == 4
    with pytest.raises(Problem, match="differ"):
        await chat(reader, max_completion_tokens=4, max_tokens=5)


async def test_min_tokens_must_not_exceed_max_tokens(reader: Reader) -> None:
    assert (await completion(reader, min_tokens=16)).sampling.min_tokens == 16
    assert (await refused(reader, min_tokens=17)).param == "min_tokens"


async def test_logprobs_of_both_endpoints(reader: Reader) -> None:
    assert (await completion(reader, logprobs=0)).sampling.logprobs == 0
    assert (await chat(reader, logprobs=True)).sampling.logprobs == 0
    assert (await chat(reader, logprobs=True, top_logprobs=2)).sampling.logprobs == 2
    assert (await chat(reader, logprobs=False)).sampling.logprobs == -1
    with pytest.raises(Problem, match="top_logprobs needs logprobs"):
        await chat(reader, top_logprobs=2)


async def test_what_contradicts_is_refused_by_name(reader: Reader) -> None:
    assert (await refused(reader, echo=True, logprobs=1)).param == "logprobs"
    assert (await refused(reader, stream_options={"include_usage": True})).param == "stream_options"
    found = await refused(reader, model="other")
    assert (found.param, found.reason, found.status) == ("model", "model_not_found", 404)
    assert "'tiny' is served here" in found.message


async def test_stop_is_one_string_or_several(reader: Reader) -> None:
    assert (await completion(reader, stop="a")).stop == ("a",)
    assert (await completion(reader, stop=["a", "b"])).stop == ("a", "b")
    assert (await completion(reader)).stop == ()


async def test_usage_is_included_only_if_asked(reader: Reader) -> None:
    assert not (await completion(reader, stream=True)).include_usage
    assert (await completion(reader, stream=True, stream_options={"include_usage": True})).include_usage


# ---- messages


async def test_messages_become_what_the_template_makes_of_them(reader: Reader, tokenizer: Tokenizer) -> None:
    ask = await chat(
        reader,
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "many?"}],
        },
        {"role": "assistant", "content": "25", "tool_calls": None},
        {"role": "user", "content": "Sure?"},
    )
    said = (("system", "Be brief."), ("user", "How many?"), ("assistant", "25"), ("user", "Sure?"))
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in said)
    assert ask.prompts[0].ids == tokenizer.encode(f"{text}<|im_start|>assistant\n", special=False)


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ("hi", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}],
            },
            "messages[0].content[1]",
        ),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0]"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
    ],
)
async def test_other_messages_are_refused_by_place(reader: Reader, message: Any, where: str) -> None:
    found = await refused(reader, message)
    assert found.message.startswith(f"{where} ")
    assert found.param == "messages"


async def test_a_templates_refusal_is_told(
    reader: Reader, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "template", ChatTemplate("{{ raise_exception('no system role') }}", {}))
    found = await refused(reader, {"role": "user", "content": "x"})
    assert "no system role" in found.message
    monkeypatch.setattr(tokenizer, "template", None)
    assert "/v1/completions" in (await refused(reader, {"role": "user", "content": "x"})).message


# ---- context


async def test_prompt_and_output_must_fit_the_context_together(reader: Reader) -> None:
    ask = await completion(reader, prompt=[5] * 90, max_tokens=10)
    check_context(ask, 100)
    with pytest.raises(Problem) as raised:
        check_context(ask, 99)
    assert raised.value.reason == "context_length_exceeded"
    assert "99 tokens" in raised.value.message
    assert "90 prompt tokens and 10 more" in raised.value.message


async def test_a_chat_that_leaves_no_token_does_not_fit(reader: Reader) -> None:
    ask = await chat(reader)
    check_context(ask, ask.prompt_tokens + 1)
    with pytest.raises(Problem, match="1 more"):
        check_context(ask, ask.prompt_tokens)
    with pytest.raises(Problem, match="5 more"):
        check_context(await chat(reader, min_tokens=5), ask.prompt_tokens + 4)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "user", "content": "Hi", "name": "bob"}, "name"),
        ({"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]}, "cache_control"),
    ],
)
async def test_what_a_message_says_beside_its_text_is_refused_by_name(
    reader: Reader, message: Any, named: str
) -> None:
    problem = await refused(reader, message)
    assert problem.reason == "unsupported_parameter"
    assert named in problem.message
