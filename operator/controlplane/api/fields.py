"""What every model of the API is made of: a strict frozen base, rules across fields, durations, sizes.

A rule is written once, as CEL for the API server and as a Python predicate for everybody else; the JSON
schema of a model carries the CEL as `x-kubernetes-validations`, so a generated CRD holds the same rules.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

DURATION = r"^([0-9]+(\.[0-9]+)?)(ms|s|m|h)$"
SIZE = r"^([1-9][0-9]*)(Ki|Mi|Gi|Ti|k|M|G|T)?$"
LATENCY = r"^([0-9]+(\.[0-9]+)?)(x|ms|s)$"

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {
    **{"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12},
    **{"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40},
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule across the fields of a model.

    cel: for the API server, with `self` the model's object. message: what is wrong and what to write.
    field: the field to point at, relative to the model, with dots; empty for the object itself.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str = ""

    def schema(self) -> dict[str, str]:
        """The rule as one item of `x-kubernetes-validations`."""
        where = {"fieldPath": f".{self.field}"} if self.field else {}
        return {"rule": self.cel, "message": self.message, **where}


class Part(BaseModel):
    """A strict, frozen piece of the API: camelCase names, unknown fields refused, `rules` checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = tuple(rule for rule in self.rules if not rule.holds(self))
        if broken:
            text = "; ".join(rule.message for rule in broken)
            raise PydanticCustomError("rule", "{text}", {"text": text, "broken": broken})
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.rules:
            schema["x-kubernetes-validations"] = [rule.schema() for rule in cls.rules]
        return schema


def _shaped(pattern: str, advice: str) -> AfterValidator:
    shape = re.compile(pattern)

    def check(text: str) -> str:
        if not shape.match(text):
            raise PydanticCustomError("shape", "{advice}", {"advice": advice})
        return text

    return AfterValidator(check)


Int = Annotated[int, Field(strict=True)]
"""A whole number; text and true are refused, as the API server does."""

Bool = Annotated[bool, Field(strict=True)]
"""true or false, and nothing that looks like it."""

Duration = Annotated[
    str,
    _shaped(DURATION, 'write a number and a unit, such as "30s", "1.5m" or "2h"'),
    Field(json_schema_extra={"pattern": DURATION}),
]
"""A time such as "30s"; `seconds` reads it."""

Size = Annotated[
    str,
    _shaped(SIZE, 'write a whole number and a unit, such as "512Mi" or "40Gi"'),
    Field(json_schema_extra={"pattern": SIZE}),
]
"""Bytes such as "512Mi"; `size_bytes` reads it."""

Latency = Annotated[
    str,
    _shaped(LATENCY, 'write a slowdown such as "1.5x", or a time such as "200ms"'),
    Field(json_schema_extra={"pattern": LATENCY}),
]
"""A limit on a latency: a slowdown against a reference profile ("1.5x") or a time ("200ms")."""


def seconds(duration: str) -> float:
    """Seconds of a `Duration`: "1.5m" is 90.0."""
    return _scaled(duration, DURATION, _SECONDS)


def size_bytes(size: str) -> int:
    """Bytes of a `Size`: "1Ki" is 1024, "1k" is 1000."""
    match = re.match(SIZE, size)
    if match is None:
        raise ValueError(f"{size!r} is not a size")
    return int(match[1]) * _BYTES[match[2] or ""]


def _scaled(text: str, pattern: str, units: dict[str, float]) -> float:
    match = re.match(pattern, text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration")
    return float(match[1]) * units[match[3]]
