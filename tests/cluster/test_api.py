"""The control plane is a real one, and whole."""

import pytest

from cluster.client import ApiError, Client
from cluster.expect import condition
from cluster.follow import wait_for, wait_gone
from cluster.running import Cluster

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}}


async def test_it_answers_and_says_its_version(kube: Client) -> None:
    version = await kube.request("GET", "/version")
    assert version["gitVersion"].startswith("v1.")


async def test_its_openapi_document_is_well_formed(cluster: Cluster, kube: Client) -> None:
    """A build under Go 1.27's new JSON package serves one that only kubectl and Helm notice."""
    document = await kube.request("GET", "/openapi/v2")
    assert "Extensions" not in document
    assert "swagger" in document
    assert "selector" in await cluster.kubectl("explain", "deployments.spec")


async def test_kubectl_applies_and_reads(cluster: Cluster, kube: Client) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-kubectl}\ndata: {k: v}\n"
    await cluster.kubectl("apply", "-n", kube.namespace, "-f", "-", text=text)
    shown = await cluster.kubectl("get", "cm", "from-kubectl", "-n", kube.namespace, "-o", "yaml")
    assert "k: v" in shown


async def test_helm_installs_a_chart(
    cluster: Cluster, kube: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chart = tmp_path_factory.mktemp("helm") / "tiny"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(
        "apiVersion: v2\nname: tiny\nversion: 0.1.0\nkubeVersion: '>=1.30.0-0'\n"
    )
    (chart / "templates" / "cm.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tiny}\ndata: {r: {{ .Release.Name }}}\n"
    )
    await cluster.helm("install", "rel", str(chart), "-n", kube.namespace, "--wait")
    assert (await kube.get("configmaps", "tiny"))["data"] == {"r": "rel"}
    await cluster.helm("uninstall", "rel", "-n", kube.namespace)
    await wait_gone(kube, "configmaps", "tiny")


async def test_apply_is_idempotent_and_a_refusal_is_an_error(kube: Client) -> None:
    [first] = await kube.apply(CONFIG)
    [second] = await kube.apply(CONFIG)
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    with pytest.raises(ApiError, match="409 AlreadyExists"):
        await kube.create(CONFIG)
    with pytest.raises(ApiError, match="404"):
        await kube.list("things.example.com")


async def test_owned_objects_are_collected(kube: Client) -> None:
    """Only with a controller manager, which an envtest bundle lacks."""
    [owner] = await kube.apply(CONFIG)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a"}
    metadata = {"name": "b", "ownerReferences": [reference | {"uid": owner["metadata"]["uid"]}]}
    await kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    await kube.delete("configmaps", "a")
    await wait_gone(kube, "configmaps", "b")


async def test_a_crd_can_be_used_as_soon_as_it_is_there(kube: Client) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "Thing", "plural": "things", "singular": "thing"}
    spec = {"group": "test.dev", "scope": "Namespaced", "names": names, "versions": [version]}
    crd = "things.test.dev"
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    await kube.apply({**kind, "metadata": {"name": crd}, "spec": spec})
    try:
        definitions = "customresourcedefinitions.apiextensions.k8s.io"
        await wait_for(kube, definitions, crd, condition("Established"))
        await kube.apply(
            {"apiVersion": "test.dev/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": {}}
        )
        thing = await wait_for(kube, crd, "x", lambda item: "spec" in item)
        assert thing["kind"] == "Thing"
    finally:
        await kube.delete("customresourcedefinitions.apiextensions.k8s.io", crd)
