"""Differences have reasons; what is the same in another spelling is none."""

import pytest

from controlplane import names
from controlplane.diff import applies, differences, stamped
from controlplane.observe import Ref


def manifest(**spec: object) -> dict[str, object]:
    return {"kind": "Service", "metadata": {"name": "s", "annotations": {}}, "spec": spec}


@pytest.mark.parametrize(
    ("wanted", "live"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": {}}, {}),
        ({"cpu": "0.5"}, {"cpu": "500m"}),
        ({"memory": "1Gi"}, {"memory": "1024Mi"}),
        ({"gpus": 8}, {"gpus": "8"}),
        ({"env": [{"name": "b", "value": "2"}]}, {"env": [{"name": "a"}, {"name": "b", "value": "2"}]}),
    ],
)
def test_nothing_differs(wanted: object, live: object) -> None:
    assert list(differences(wanted, live)) == []


@pytest.mark.parametrize(
    ("wanted", "live", "reason"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b: 2 -> 1"),
        ({"a": 1}, {}, "a: nothing -> 1"),
        ({"a": [1, 2]}, {"a": [1]}, "a: 1 items -> 2"),
        ({"a": [{"k": 1}]}, {"a": [{"k": 2}]}, "a[0].k: 2 -> 1"),
        ({"c": [{"name": "x", "image": "n"}]}, {"c": [{"name": "x", "image": "o"}]}, "c[x].image: o -> n"),
        ({"memory": "1Gi"}, {"memory": "1G"}, "memory: 1G -> 1Gi"),
    ],
)
def test_differences_say_what(wanted: object, live: object, reason: str) -> None:
    assert list(differences(wanted, live)) == [reason]


def test_what_is_so_is_not_applied() -> None:
    wanted = manifest(type="ClusterIP")
    live = stamped(wanted) | {"status": {}}
    assert list(applies([wanted], {Ref("Service", "s"): live})) == []


def test_what_is_missing_is_applied() -> None:
    [change] = applies([manifest()], {})
    assert change.why == "missing"
    assert change.manifest["metadata"]["annotations"][names.APPLIED]


def test_a_field_that_is_no_longer_wanted_is_a_difference() -> None:
    live = stamped(manifest(type="ClusterIP", externalName="old"))
    [change] = applies([manifest(type="ClusterIP")], {Ref("Service", "s"): live})
    assert change.why == "a field is no longer set"


def test_only_the_first_reasons_are_told() -> None:
    [change] = applies([manifest(a=1, b=2, c=3, d=4, e=5)], {Ref("Service", "s"): manifest()})
    assert change.why.endswith("; and 2 more")
