"""Chat templates: a conversation to prompt text, as the model was trained to read it.

A template is code that comes with the model, so it runs in Jinja's sandbox. It sees what templates expect
to see: the messages, the special tokens, `raise_exception`, `strftime_now`, `tojson`, break and continue.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRefusal(Exception):
    """The template does not take this conversation; the message is the template's own."""


class ChatTemplate:
    """A compiled template. `special` are the model's special tokens by name (`bos_token`, ...)."""

    def __init__(
        self, source: str, special: Mapping[str, str], now: Callable[[], datetime] = datetime.now
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"the chat template is not valid Jinja: {error}") from error
        self._special = dict(special)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text, ending where the assistant's answer begins. Raises TemplateRefusal."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._special
            )
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            raise TemplateRefusal(str(error)) from error


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; for us its body is all there is."""

    tags = {"generation"}  # noqa: RUF012 (the attribute is Jinja's)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)
