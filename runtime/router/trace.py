"""What became of a request behind the API: the `splitwise` field of a traced answer, and the log line."""

from typing import Any

from msgspec import structs

from runtime.router.answer import Answer
from runtime.router.choice import Choice


def trace_of(answer: Answer) -> dict[str, Any]:
    """Machines, restarts, token ids and KV transfer (runtime.wire.Transfer) of every choice."""
    return {"request_id": answer.request_id, "choices": [_choice(choice) for choice in answer.choices]}


def _choice(choice: Choice) -> dict[str, Any]:
    kv = structs.asdict(choice.transfer) if choice.transfer else None
    return _machines(choice) | {"token_ids": choice.output.token_ids, "kv": kv}


def _machines(choice: Choice) -> dict[str, Any]:
    place = choice.place
    return {
        "prompt_machine": place.prompt.name if place else None,
        "token_machine": place.token.name if place else None,
        "split": bool(place and place.split),
        "restarts": choice.restarts,
    }


def log_fields(answer: Answer, *, outcome: str, now: float) -> dict[str, Any]:
    """One line per request: never any text. Times in seconds; `tbt_seconds` is the mean over all gaps."""
    first = answer.first_token_at
    gaps = answer.output_tokens - sum(1 for choice in answer.choices if choice.output.token_ids)
    spread = sum(choice.last_token_at - choice.first_token_at for choice in answer.choices)
    return {
        "request": answer.request_id,
        "endpoint": answer.ask.kind,
        "outcome": outcome,
        "prompt_tokens": answer.ask.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "choices": [_machines(choice) for choice in answer.choices],
        "restarts": answer.restarts,
        "ttft_seconds": None if first is None else round(first - answer.begun_at, 6),
        "tbt_seconds": round(spread / gaps, 6) if gaps > 0 else None,
        "e2e_seconds": round(now - answer.begun_at, 6),
    }
