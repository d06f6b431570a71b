"""Generated files are current, and the schema is one an API server takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from controlplane import generate
from controlplane.generate import crd, rbac, values
from controlplane.generate.schema import NotStructural, structural
from controlplane.kinds import KINDS

ROOT = Path(__file__).resolve().parents[3]


def test_nothing_is_stale() -> None:
    assert generate.check(ROOT) == [], "run python -m controlplane generate"


def test_a_stale_file_is_found_and_written(tmp_path: Path) -> None:
    assert "docs/reference/api.md" in generate.check(tmp_path)
    generate.write(tmp_path)
    assert generate.check(tmp_path) == []
    (tmp_path / "docs/reference/api.md").write_text("old")
    assert generate.check(tmp_path) == ["docs/reference/api.md"]


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from schemas(schema[inner], f"{path}[]")


@pytest.mark.parametrize("made", [crd.deployments(), crd.pools()], ids=["deployments", "pools"])
def test_schemas_are_structural_and_described(made: dict[str, Any]) -> None:
    root = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, schema in schemas(root):
        assert "type" in schema, path
        assert not {"$ref", "anyOf", "allOf", "title", "const"} & schema.keys(), path
        if path and path != ".metadata" and not path.endswith("[]"):
            assert schema.get("description"), f"{path} has no description"


def test_unions_are_refused_with_their_path() -> None:
    class Both(BaseModel):
        either: int | str

    with pytest.raises(NotStructural, match=r"Both\.either"):
        structural(Both)


def test_open_bounds_become_whole_numbers() -> None:
    block = crd.deployments()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    field = block["properties"]["spec"]["properties"]["engine"]["properties"]["kvBlockTokens"]
    assert (field["minimum"], field["maximum"]) == (1, 1024)


def test_no_rule_has_a_wildcard_and_secrets_are_not_listed() -> None:
    rules = [*rbac.namespaced(), *rbac.cluster(), *rbac.own()]
    assert all("*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]) for rule in rules)
    [secrets] = [rule for rule in rules if rule["resources"] == ["secrets"]]
    assert secrets["verbs"] == ["get", "create", "patch"]
    resources = {(rule["apiGroups"][0], rule["resources"][0]) for rule in rules}
    assert {(kind.group, kind.plural) for kind in KINDS.values() if kind.verbs} <= resources


def test_values_are_the_models_defaults() -> None:
    written = yaml.safe_load(values.file())
    written.pop("settings")
    assert values.Values.model_validate(written) == values.Values()
