"""One JSON object a line, with the process's fields and the event's."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from runtime import log


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root, ours = logging.getLogger(), logging.getLogger("splitwise")
    before = (root.handlers[:], root.level, ours.level)
    stream = io.StringIO()
    log.set_up(stream, machine="token-0")
    yield stream
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_a_line_holds_the_event_and_all_fields(lines: io.StringIO) -> None:
    log.logger("router").info("request", tokens=3, ttft_seconds=0.25)
    line = json.loads(lines.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "event": "request",
        "logger": "router",
        "machine": "token-0",
        "tokens": 3,
        "ttft_seconds": 0.25,
    }


def test_an_exception_stays_on_one_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        log.logger("router").exception("broke", request="r-1")
    (line,) = lines.getvalue().splitlines()
    assert json.loads(line)["request"] == "r-1"
    assert "ValueError: first\nsecond" in json.loads(line)["error"]


def test_libraries_are_heard_from_warnings_on_and_ours_from_info_on(lines: io.StringIO) -> None:
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").warning("trouble")
    log.logger("x").debug("detail")
    log.logger("x").error("bad", path=print)
    assert [json.loads(line)["event"] for line in lines.getvalue().splitlines()] == ["trouble", "bad"]
