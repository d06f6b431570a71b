"""pydantic's JSON schema into Kubernetes' structural form.

References are put in place, titles dropped, `X | None` is X, a bound that excludes its number becomes the
next whole number. What cannot be said structurally is refused here instead of by an API server later.
"""

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = (
    *("type", "description", "format", "default", "enum", "pattern", "required"),
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
)
TEXT_LENGTH = 4096
"""Longest text, and most entries of a map or list, where a model says nothing: bounds keep CEL cheap."""
ENTRIES = 64


class NotStructural(ValueError):
    """A model says something that a CRD cannot."""


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of a model. Raises NotStructural with the path of the offending field."""
    whole = model.model_json_schema(by_alias=True)
    return _converted(whole, whole.get("$defs", {}), model.__name__)


def _converted(schema: Schema, defs: dict[str, Schema], path: str) -> Schema:
    schema = _in_place(schema, defs, path)
    result = {key: schema[key] for key in _KEPT if key in schema}
    result |= {key: value for key, value in schema.items() if key.startswith("x-kubernetes-")}
    if "type" not in result:
        raise NotStructural(f"{path}: no single type")
    if "exclusiveMinimum" in schema:
        result["minimum"] = schema["exclusiveMinimum"] + 1
    if "default" in result:
        result["default"] = _without_nothing(result["default"])
        if result["default"] is None:
            del result["default"]
    _add_children(result, schema, defs, path)
    _bound(result)
    return result


def _in_place(schema: Schema, defs: dict[str, Schema], path: str) -> Schema:
    """The schema with its reference or its `X | None` resolved; what is said beside it wins."""
    beside = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf", "allOf")}
    if "$ref" in schema:
        return _in_place(defs[schema["$ref"].rsplit("/", 1)[1]] | beside, defs, path)
    if "allOf" in schema and len(schema["allOf"]) == 1:
        return _in_place(schema["allOf"][0] | beside, defs, path)
    if "anyOf" in schema:
        real = [option for option in schema["anyOf"] if option.get("type") != "null"]
        if len(real) != 1:
            raise NotStructural(f"{path}: a union of {len(real)} types")
        return _in_place(real[0] | beside, defs, path)
    if "const" in schema:
        return schema | {"enum": [schema["const"]]}
    return schema


def _add_children(result: Schema, schema: Schema, defs: dict[str, Schema], path: str) -> None:
    if schema["type"] == "object" and "properties" in schema:
        properties = schema["properties"]
        result["properties"] = {
            name: _converted(child, defs, f"{path}.{name}") for name, child in properties.items()
        }
    elif schema["type"] == "array":
        result["items"] = _converted(schema["items"], defs, f"{path}[]")
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _converted(schema["additionalProperties"], defs, f"{path}.*")


def _without_nothing(default: Any) -> Any:
    """A default without its unset fields. It stays whole otherwise: rules judge it before it is filled in."""
    if isinstance(default, dict):
        return {key: _without_nothing(value) for key, value in default.items() if value is not None}
    return default


def _bound(result: Schema) -> None:
    if result["type"] == "string" and not {"enum", "maxLength", "format"} & result.keys():
        result["maxLength"] = TEXT_LENGTH
    if result["type"] == "array":
        result.setdefault("maxItems", ENTRIES)
    if result["type"] == "integer" and "format" not in result:
        result["format"] = "int64"
    if "additionalProperties" in result:
        result["maxProperties"] = ENTRIES
