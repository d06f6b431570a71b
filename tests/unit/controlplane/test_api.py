"""The API models: what is accepted, what is refused, and how a refusal reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from controlplane import api
from controlplane.api import InvalidDeployment, Part, SplitwiseDeployment, parse, read
from deployments import BREAKS, HOLDS, deployment, named

KEY = "x-kubernetes-validations"
EXAMPLES = sorted((Path(__file__).parents[3] / "deploy" / "examples").glob("*.yaml"))


def problems(document: Any) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidDeployment) as caught:
        parse(document)
    return list(caught.value.problems)


def parts(model: type[Part] = Part) -> Iterator[type[Part]]:
    for part in model.__subclasses__():
        yield part
        yield from parts(part)


@pytest.mark.parametrize(
    ("path", "message", "document"), BREAKS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_broken_rule_names_the_path_and_what_to_write(
    path: str, message: str, document: dict[str, Any]
) -> None:
    ((where, _, advice),) = problems(document)
    assert where == path
    assert message in advice


def test_every_rule_is_broken_by_some_case() -> None:
    rules = {rule.message for part in parts() for rule in part.rules}
    broken = {problems(document)[0][2] for _, _, document in BREAKS}
    assert broken == rules


@pytest.mark.parametrize("document", HOLDS)
def test_documents_close_to_the_rules_hold(document: dict[str, Any]) -> None:
    parse(document)


def test_a_rule_is_in_the_schema_where_its_model_is() -> None:
    schema = SplitwiseDeployment.model_json_schema()
    validations = schema["$defs"]["KvTransfer"][KEY]
    assert [each["fieldPath"] for each in validations] == [".requireRDMA"]
    assert "in ['shm', 'tcp']" in validations[0]["rule"]
    held = [validation for part in schema["$defs"].values() for validation in part.get(KEY, [])]
    held += schema[KEY]
    assert len(held) == sum(len(part.rules) for part in parts())


def test_every_field_of_the_spec_explains_itself() -> None:
    mute = [
        f"{name}.{field}"
        for name, part in SplitwiseDeployment.model_json_schema()["$defs"].items()
        if name != "Metadata"
        for field, schema in part["properties"].items()
        if not schema.get("description")
    ]
    assert mute == []


@pytest.mark.parametrize(
    ("spec", "path", "advice"),
    [
        ({"designn": "HH"}, "spec.designn", "did you mean design?"),
        ({"pools": {"prompt": {"replcas": 2}, "token": {}}}, "spec.pools.prompt.replcas", "mean replicas?"),
        ({"kvTransfer": {"zzz": 1}}, "spec.kvTransfer.zzz", "transport, requireRDMA, layerwiseAboveTokens"),
        ({"kvTransfer": {"require_rdma": True}}, "spec.kvTransfer.require_rdma", "mean requireRDMA?"),
        ({"kvTransfer": {"transport": "rdma"}}, "spec.kvTransfer.transport", "'auto', 'shm', 'tcp'"),
        ({"requestTimeout": "soon"}, "spec.requestTimeout", '"30s"'),
        ({"requestTimeout": 30}, "spec.requestTimeout", "quotes"),
        ({"slo": {"ttft": {"p50": "fast"}}}, "spec.slo.ttft.p50", '"1.5x"'),
        ({"router": 5}, "spec.router", "mapping"),
        ({"router": {"port": "8000"}}, "spec.router.port", "whole number"),
        ({"router": {"port": 0}}, "spec.router.port", "greater than or equal to 1"),
        (
            {"scheduling": {"mixedPool": {"enabled": "no"}}},
            "spec.scheduling.mixedPool.enabled",
            "true or false",
        ),
        ({"model": {}}, "spec.model.name", "missing"),
        ({"pools": {"mixed": {"kvCache": {"memory": "0"}}}}, "spec.pools.mixed.kvCache.memory", '"512Mi"'),
        ({"pools": {"mixed": {"gpu": {"family": "H 100"}}}}, "spec.pools.mixed.gpu.family", "not allowed"),
        ({"engine": {"args": "--x"}}, "spec.engine.args", "list"),
    ],
)
def test_a_wrong_field_is_named_with_what_to_write(spec: dict[str, Any], path: str, advice: str) -> None:
    ((where, _, text),) = problems(deployment(**spec))
    assert where == path
    assert advice in text


def test_all_problems_are_listed_with_their_values() -> None:
    document = deployment(designn="HH", router={"port": 0}, kvTransfer={"transport": "rdma"})
    with pytest.raises(InvalidDeployment) as caught:
        parse(document, source="llama.yaml")
    lines = str(caught.value).splitlines()
    assert lines[0] == "llama.yaml: 3 problems"
    assert "  spec.router.port: 0" in lines
    assert "  spec.kvTransfer.transport: rdma" in lines


@pytest.mark.parametrize("document", [None, [], "text", {}, {"kind": "Pod"}])
def test_what_is_no_deployment_is_refused(document: Any) -> None:
    assert problems(document)


def test_a_name_must_be_a_dns_label() -> None:
    assert problems(named("Upper"))[0][0] == "metadata.name"


def test_objects_are_frozen() -> None:
    with pytest.raises(ValidationError):
        parse(deployment()).spec.pools.prompt = None  # type: ignore[misc]


def test_fields_of_the_api_server_pass() -> None:
    document = deployment()
    document["metadata"] |= {"uid": "1", "generation": 3, "managedFields": []}
    assert parse(document | {"status": {"conditions": []}}).metadata.name == "tiny"


def families(spec: dict[str, Any]) -> dict[str, tuple[str | None, int | None]]:
    return {
        role: (pool.gpu.family if pool.gpu else None, pool.power_cap.percent if pool.power_cap else None)
        for role, pool in parse(deployment(**spec)).spec.effective_pools().items()
    }


@pytest.mark.parametrize(
    ("design", "prompt", "token"),
    [
        ("AA", ("A100", None), ("A100", None)),
        ("HH", ("H100", None), ("H100", None)),
        ("HA", ("H100", None), ("A100", None)),
        ("HHcap", ("H100", None), ("H100", 50)),
    ],
)
def test_a_design_sets_gpus_and_cap(design: str, prompt: tuple[str, None], token: tuple[str, None]) -> None:
    """Paper table V."""
    assert families({"design": design}) == {"prompt": prompt, "token": token}


def test_a_pool_goes_before_the_design() -> None:
    token = {"gpu": {"family": "L40S", "count": 8}, "powerCap": {"percent": 70}}
    assert families({"design": "HHcap", "pools": {"prompt": {}, "token": token}})["token"] == ("L40S", 70)


def test_products_are_not_mixed_with_the_designs_family() -> None:
    token = {"gpu": {"products": ["NVIDIA-A100-SXM4-40GB"]}}
    assert families({"design": "HH", "pools": {"prompt": {}, "token": token}})["token"] == (None, None)


@pytest.mark.fault("GPU-1")
@pytest.mark.parametrize(
    "product",
    [
        "NVIDIA-H100-80GB-HBM3",
        "NVIDIA-H100-PCIe",
        "NVIDIA-H100-NVL",
        "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
        "Tesla-T4-SHARED",
        "Some-Card-Of-Next-Year",
    ],
)
def test_no_product_string_and_no_family_is_refused(product: str) -> None:
    gpu = {"family": product, "products": [product], "count": 1}
    parse(deployment(pools={"mixed": {"gpu": gpu}}))


def test_without_a_source_the_name_is_the_hub_repository() -> None:
    hub = parse(deployment()).spec.model.effective_source.hub
    assert hub is not None
    assert (hub.id, hub.revision) == ("tiny", "main")


@pytest.mark.parametrize(("text", "value"), [("30s", 30.0), ("1.5m", 90.0), ("200ms", 0.2), ("2h", 7200.0)])
def test_durations(text: str, value: float) -> None:
    assert api.seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("512Mi", 2**29), ("1k", 1000), ("7", 7), ("3Gi", 3 * 2**30)])
def test_sizes(text: str, value: int) -> None:
    assert api.size_bytes(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1s", "1 s"])
def test_what_is_no_size_or_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        api.seconds(text)
    with pytest.raises(ValueError, match="is not a size"):
        api.size_bytes(text)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_parse(path: Path) -> None:
    assert read(path).spec.effective_pools()


def test_a_file_is_read_and_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    for text, message in [
        ("a: [", "not YAML"),
        ("? [a, b]\n: 1\n", "not YAML"),
        ("a: 1\nb: {c: 1, c: 2}\n", "c is written twice"),
        ("", "the document"),
        ("kind: SplitwiseDeployment\n---\nkind: SplitwiseDeployment\n", "holds 2 objects"),
    ]:
        path.write_text(text)
        with pytest.raises(InvalidDeployment, match=message) as caught:
            read(path)
        assert "broken.yaml" in str(caught.value)
    with pytest.raises(InvalidDeployment, match="No such file"):
        read(tmp_path / "absent.yaml")


def test_other_objects_in_the_file_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("kind: Namespace\nmetadata: {name: x}\n---\n" + EXAMPLES[0].read_text())
    assert read(path) == read(EXAMPLES[0])
