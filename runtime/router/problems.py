"""Failures as the OpenAI API tells them: a status, and `{"error": {message, type, param, code}}`."""

from collections.abc import Mapping

import msgspec

from runtime.errors import DeadlineExceeded, Failure, InvalidRequest, MachineLost, NoCapacity, TransferFailed

RETRY_AFTER_SECONDS = 5


class Problem(InvalidRequest):
    """Something about the request itself. `param` names the field, `reason` is OpenAI's error code."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        reason: str | None = None,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_brief(message, 2000))
        self.param = _brief(param, 200) if param else None
        self.reason = reason
        self.status = status
        self.headers = headers or {}


def _brief(text: str, length: int) -> str:
    """A message may quote what the client sent, but not all of it."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


_STATUS: tuple[tuple[type[Failure], int], ...] = (
    (InvalidRequest, 400),
    (NoCapacity, 503),
    (MachineLost, 503),
    (TransferFailed, 503),
    (DeadlineExceeded, 504),
)


def status_of(failure: Failure) -> int:
    """The HTTP status for a failure."""
    if isinstance(failure, Problem):
        return failure.status
    return next((status for kind, status in _STATUS if isinstance(failure, kind)), 500)


def headers_of(failure: Failure) -> Mapping[str, str]:
    """What the failure says in headers: Retry-After where trying again helps."""
    if isinstance(failure, Problem):
        return failure.headers
    return {"Retry-After": str(RETRY_AFTER_SECONDS)} if status_of(failure) == 503 else {}


def body_of(failure: Failure) -> bytes:
    """The error object, as JSON."""
    client = status_of(failure) < 500
    problem = failure if isinstance(failure, Problem) else None
    return msgspec.json.encode(
        {
            "error": {
                "message": failure.message,
                "type": "invalid_request_error" if client else "server_error",
                "param": problem.param if problem else None,
                "code": problem.reason if problem else failure.code,
            }
        }
    )
