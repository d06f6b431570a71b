"""What can go wrong in a pass.

    ControlPlaneError
    └── ApiError        the API server refused or did not answer     tried again, later and later
        ├── NotFound    404
        └── Conflict    409

An object that cannot be served is `api.InvalidDeployment`; "not ready yet" is no error.
"""


class ControlPlaneError(Exception):
    """The message is a sentence for a person."""


class ApiError(ControlPlaneError):
    """The API server refused a call; `status` is the HTTP status, 0 if there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotFound(ApiError):
    """The object or its kind does not exist."""


class Conflict(ApiError):
    """Somebody else was faster, or it exists already."""
