"""The CRD refuses what the models refuse, in the same words, and takes what they take."""

from typing import Any

import pytest

from cluster.client import ApiError, Client, Object
from cluster.running import Cluster
from deployments import BREAKS, HOLDS

DRY = {"dryRun": "All"}


async def create(api: Client, document: Object) -> None:
    body = document | {"metadata": document["metadata"] | {"namespace": api.namespace}}
    collection, _ = await api.object_path(body)
    await api.request("POST", collection, body, query=DRY)


@pytest.mark.parametrize(
    ("where", "message", "document"), BREAKS, ids=[f"{where}-{n}" for n, (where, _, _) in enumerate(BREAKS)]
)
async def test_what_python_refuses_is_refused(
    api: Client, where: str, message: str, document: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as refused:
        await create(api, document)
    assert message in str(refused.value)
    if not where.startswith("metadata"):
        assert where in str(refused.value)


@pytest.mark.parametrize("document", HOLDS, ids=range(len(HOLDS)))
async def test_what_python_takes_is_taken(api: Client, document: dict[str, Any]) -> None:
    await create(api, document)


async def test_explain_reads_well(cluster: Cluster, api: Client) -> None:
    text = await cluster.kubectl("explain", "swd.spec.pools.token")
    assert "Machines that produce the tokens after the first." in text
    assert "powerCap" in text


async def test_short_name_and_category(cluster: Cluster, api: Client) -> None:
    for name in ("swd", "swp", "inference"):
        await cluster.kubectl("get", name, "-n", api.namespace)
