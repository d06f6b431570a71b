"""What differs between what shall be and what is, each difference with its reason.

A child is compared field by field with what we would apply; fields that others own do not matter. What we
applied last is known by a hash in an annotation, so that a field we no longer want is a difference too.
Nothing is written that is already so.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from controlplane import names
from controlplane.names import Manifest
from controlplane.observe import Ref

REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Apply:
    """Make a child as it shall be."""

    manifest: Manifest
    why: str


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object once, and leave it to others from then on."""

    manifest: Manifest
    why: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the size of a StatefulSet of an earlier template, and nothing else of it."""

    ref: Ref
    replicas: int
    why: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a child that is no longer wanted."""

    ref: Ref
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class LabelNode:
    """Set labels of a node; None removes one."""

    node: str
    labels: Mapping[str, str | None]
    why: str


Change = Apply | Create | Resize | Delete | LabelNode


def stamped(manifest: Manifest) -> Manifest:
    """The manifest with the hash of itself. The parts that stay the same are shared."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations", {}) | {names.APPLIED: names.digest(manifest, 16)}
    return manifest | {"metadata": metadata | {"annotations": annotations}}


def ref_of(manifest: Manifest) -> Ref:
    return Ref(manifest["kind"], manifest["metadata"]["name"])


def applies(desired: Iterable[Manifest], children: Mapping[Ref, Manifest]) -> Iterator[Apply]:
    """An Apply for each manifest that is missing or differs, in the order given."""
    for manifest in map(stamped, desired):
        live = children.get(ref_of(manifest))
        if live is None:
            yield Apply(manifest, "missing")
        elif reasons := list(differences(manifest, live)):
            yield Apply(manifest, _said(reasons))


def _said(reasons: list[str]) -> str:
    """The first few reasons; the hash is one only where nothing else shows."""
    telling = [reason for reason in reasons if names.APPLIED not in reason] or ["a field is no longer set"]
    more = len(telling) - REASONS_SHOWN
    return "; ".join(telling[:REASONS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def differences(wanted: Any, live: Any, path: str = "") -> Iterator[str]:
    """Where `live` does not say what `wanted` says, as sentences. `live` may say more."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        for key, value in wanted.items():
            yield from differences(value, live.get(key), f"{path}.{key}" if path else key)
    elif isinstance(wanted, list) and isinstance(live, list):
        yield from _list_differences(wanted, live, path)
    elif not _same(wanted, live):
        yield f"{path}: {_short(live)} -> {_short(wanted)}"


def _list_differences(wanted: list[Any], live: list[Any], path: str) -> Iterator[str]:
    if wanted and all(isinstance(item, dict) and "name" in item for item in wanted):
        by_name = {item.get("name"): item for item in live if isinstance(item, dict)}
        for item in wanted:
            yield from differences(item, by_name.get(item["name"]), f"{path}[{item['name']}]")
        return
    if len(wanted) != len(live):
        yield f"{path}: {len(live)} items -> {len(wanted)}"
        return
    for index, (item, other) in enumerate(zip(wanted, live, strict=True)):
        yield from differences(item, other, f"{path}[{index}]")


_QUANTITY = re.compile(r"^([0-9.]+)(m|[kMGTPE]|[KMGTPE]i)?$")
_SCALE = {"m": Decimal("0.001"), "": Decimal(1)}
_SCALE |= {unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)}
_SCALE |= {f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)}


def _same(wanted: Any, live: Any) -> bool:
    """Equal, or nothing in another spelling, or one quantity in two spellings: "0.5" and "500m"."""
    if wanted == live:
        return True
    if live is None and wanted in ({}, [], "", False, 0):
        return True
    if isinstance(wanted, (str, int)) and isinstance(live, str):
        one, other = _QUANTITY.match(str(wanted)), _QUANTITY.match(live)
        if one and other:
            try:
                return Decimal(one[1]) * _SCALE[one[2] or ""] == Decimal(other[1]) * _SCALE[other[2] or ""]
            except ArithmeticError:
                return False
    return False


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
