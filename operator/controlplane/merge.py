"""A partial object over a whole one: how `podTemplate` overrides what the operator renders."""

from typing import Any


def merged(whole: Any, part: Any) -> Any:
    """`whole` with `part` laid over it.

    Maps merge field by field and null removes one; lists of things with names merge by name, as in
    `kubectl patch`; everything else is replaced.
    """
    if isinstance(whole, dict) and isinstance(part, dict):
        result = dict(whole)
        for key, value in part.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(whole.get(key), value)
        return result
    if _named(whole) and _named(part):
        return _merged_lists(whole, part)
    return part


def _merged_lists(whole: list[dict[str, Any]], part: list[dict[str, Any]]) -> list[dict[str, Any]]:
    over = {item["name"]: item for item in part}
    names = {item["name"] for item in whole}
    kept = [merged(item, over.get(item["name"], {})) for item in whole]
    return kept + [item for item in part if item["name"] not in names]


def _named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value)
