"""What is wrong with a work, before it costs anything."""

from runtime.engine import Work
from runtime.errors import InvalidRequest


def check(work: Work, *, prompt_tokens: int, context_tokens: int, vocabulary: int) -> None:
    """Raises InvalidRequest if the work can never run. The KV pool holds prompts of `prompt_tokens` tokens;
    `context_tokens` bounds prompt and answer together."""
    if not work.prompt:
        raise InvalidRequest("the prompt is empty: send at least one token")
    limit = min(prompt_tokens, context_tokens - 1)
    if len(work.tokens) > limit:
        raise InvalidRequest(
            f"a prompt of {len(work.tokens)} tokens: at most {limit} leave room for an answer"
        )
    _check_ids(work, vocabulary)
    _check_sampling(work)


def _check_ids(work: Work, vocabulary: int) -> None:
    sampling = work.sampling
    named = {
        "token": work.tokens,
        "logit_bias": sampling.logit_bias,
        "stop_token_ids": sampling.stop_token_ids,
    }
    for what, ids in named.items():
        for id in ids:
            if not 0 <= id < vocabulary:
                raise InvalidRequest(f"{what} {id}: the model's tokens are 0 to {vocabulary - 1}")


def _check_sampling(work: Work) -> None:
    sampling = work.sampling
    if sampling.max_tokens <= len(work.generated):
        raise InvalidRequest(
            f"max_tokens is {sampling.max_tokens} and {len(work.generated)} were generated: none is left"
        )
    if not sampling.temperature >= 0:
        raise InvalidRequest(f"temperature {sampling.temperature}: give 0 or more")
    if not sampling.repetition_penalty > 0:
        raise InvalidRequest(f"repetition_penalty {sampling.repetition_penalty}: give more than 0")
    if not 0 < sampling.top_p <= 1:
        raise InvalidRequest(f"top_p {sampling.top_p}: give more than 0, at most 1")
    if not 0 <= sampling.min_p <= 1:
        raise InvalidRequest(f"min_p {sampling.min_p}: give 0 to 1")
