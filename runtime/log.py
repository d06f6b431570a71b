"""Logs as JSON lines: one object a line, for people with `jq` and for collectors.

    log.set_up(machine="token-0")
    logger = log.logger("machine")
    logger.info("ready", address=address)

Fields are values with units in their names. Prompts, answers and secrets are never among them.
"""

import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

_FIELDS = "splitwise_fields"
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Logger:
    """Writes events with fields. The event is a fixed phrase, so that it can be searched for."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"splitwise.{name}")

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the exception being handled."""
        self._log(logging.ERROR, event, fields, sys.exception())

    def _log(
        self, level: int, event: str, fields: dict[str, Any], error: BaseException | None = None
    ) -> None:
        """Makes the record itself: where in the code it comes from is not worth walking the stack."""
        logger = self._logger
        if logger.isEnabledFor(level):
            raised = (type(error), error, error.__traceback__) if error else None
            record = logging.LogRecord(logger.name, level, "", 0, event, None, raised)
            setattr(record, _FIELDS, fields)
            logger.handle(record)


def logger(name: str) -> Logger:
    """The logger of one part of the program."""
    return Logger(name)


def set_up(stream: TextIO | None = None, level: int = logging.INFO, **fields: Any) -> None:
    """Send everything that the process logs, libraries included, to `stream` (stderr); `fields` are on
    every line."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(fields))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("splitwise").setLevel(level)


class JsonLines(logging.Formatter):
    """One JSON object per record."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__()
        self._constant = fields

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name.removeprefix("splitwise."),
            **self._constant,
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info and record.exc_info[1]:
            line["error"] = "".join(traceback.format_exception(record.exc_info[1])).strip()
        return _encode(line).decode()
