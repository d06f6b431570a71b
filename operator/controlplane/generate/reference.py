"""Reference pages: every field of the API, and every condition with its reasons."""

from collections.abc import Iterator
from typing import Any

from controlplane.api import KIND, PLURAL, SHORT_NAMES
from controlplane.api.scaler import SCALER_KIND, SCALER_PLURAL, SCALER_SHORT_NAMES
from controlplane.generate import crd
from controlplane.generate.schema import Schema

_HEAD = """# API reference

Generated from the models in `operator/controlplane/api`; the same text is in `kubectl explain`.
"""


def api() -> str:
    """docs/reference/api.md."""
    parts = [_HEAD]
    for kind, plural, short, made in (
        (KIND, PLURAL, SHORT_NAMES, crd.deployments()),
        (SCALER_KIND, SCALER_PLURAL, SCALER_SHORT_NAMES, crd.pools()),
    ):
        schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        parts.append(f"## {kind}\n\n`kubectl get {plural}` or `{short[0]}`. {schema['description']}\n")
        for part in ("spec", "status"):
            rows = "\n".join(_rows(schema["properties"][part], part))
            parts.append(
                f"### {part}\n\n| field | type | default | what it is |\n|---|---|---|---|\n{rows}\n"
            )
        rules = list(_rules(schema, ""))
        if rules:
            parts.append("### Rules\n\nChecked when an object is written.\n\n" + "\n".join(rules) + "\n")
    return "\n".join(parts)


def _rows(schema: Schema, path: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, child in schema.get("properties", {}).items():
        where = f"{path}.{name}"
        need = " (required)" if name in required else ""
        text = child.get("description", "").replace("|", "\\|")
        yield f"| `{where}`{need} | {_type(child)} | {_default(child)} | {text} |"
        inner = child.get("items", child)
        yield from _rows(inner, where + ("[]" if "items" in child else ""))


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    bounds = [f"{sign}{schema[key]}" for key, sign in (("minimum", "≥ "), ("maximum", "≤ ")) if key in schema]
    return str(schema["type"]) + (f", {', '.join(bounds)}" if bounds else "")


def _default(schema: Schema) -> str:
    value: Any = schema.get("default")
    simple = value is not None and not isinstance(value, (dict, list)) and value != ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if simple else ""


def _rules(schema: Schema, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        where = (path + rule.get("fieldPath", "")).lstrip(".") or "metadata.name"
        yield f"- `{where}`: {rule['message']}."
    for name, child in schema.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}")
