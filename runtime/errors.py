"""What can go wrong with a request, as a small tree.

    Failure
    ├── InvalidRequest     the client must change something       400
    ├── NoCapacity         no machine can take it now             503, Retry-After
    ├── MachineLost        the connection to a machine ended      restarted from scratch, bounded
    ├── TransferFailed     the KV-cache did not arrive whole      restarted or recomputed
    ├── DeadlineExceeded   the request's time is over             504
    ├── Cancelled          the client or another leg gave up      nothing to say
    └── EngineFailure      the engine could not compute it        500

`code` travels on the wire; `failure(code, message)` turns it back into the exception.
"""

from typing import ClassVar


class Failure(Exception):
    """A request could not be served; the message says why and, where possible, what to change."""

    code: ClassVar[str] = "failure"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(Failure):
    code = "invalid_request"


class NoCapacity(Failure):
    code = "no_capacity"


class MachineLost(Failure):
    code = "machine_lost"


class TransferFailed(Failure):
    code = "transfer_failed"


class DeadlineExceeded(Failure):
    code = "deadline_exceeded"


class Cancelled(Failure):
    code = "cancelled"


class EngineFailure(Failure):
    code = "engine_failure"


_BY_CODE: dict[str, type[Failure]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        NoCapacity,
        MachineLost,
        TransferFailed,
        DeadlineExceeded,
        Cancelled,
        EngineFailure,
    )
}


def failure(code: str, message: str) -> Failure:
    """The exception for a code from the wire; an unknown code is an EngineFailure."""
    return _BY_CODE.get(code, EngineFailure)(message)
