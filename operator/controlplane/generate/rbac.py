"""RBAC rules from the table of kinds: nothing with a wildcard, nothing that is not used."""

from collections.abc import Iterable
from typing import Any

from controlplane.api import KIND
from controlplane.kinds import KINDS, PASSED_ON, Kind

Rule = dict[str, Any]


def namespaced() -> list[Rule]:
    """In each namespace whose deployments are served, or in all."""
    kinds = [kind for kind in KINDS.values() if not kind.cluster and not kind.own]
    granted = [_rule(group, resource, verbs) for group, resource, verbs in PASSED_ON]
    return [*_rules(kinds), *granted]


def cluster() -> list[Rule]:
    """For kinds that have no namespace."""
    return _rules(kind for kind in KINDS.values() if kind.cluster)


def own() -> list[Rule]:
    """In the operator's own namespace."""
    return _rules(kind for kind in KINDS.values() if kind.own)


def _rules(kinds: Iterable[Kind]) -> list[Rule]:
    rules = []
    for kind in kinds:
        if not kind.verbs:
            continue
        rules.append(_rule(kind.group, kind.plural, kind.verbs))
        if kind.status:
            rules.append(_rule(kind.group, f"{kind.plural}/status", kind.status))
        if kind.name == KIND:
            # owner references that block the owner's deletion need this where that is enforced
            rules.append(_rule(kind.group, f"{kind.plural}/finalizers", ("update",)))
    return rules


def _rule(group: str, resource: str, verbs: Iterable[str]) -> Rule:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
