"""A cluster with the CRDs, and an operator per test in the test's own namespace."""

import pathlib
from collections.abc import AsyncIterator

import pytest

from cluster.client import Client
from cluster.running import Cluster
from operating import Operator, install_crds, operating


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("cluster.fixtures")


@pytest.fixture
async def api(kube: Client) -> Client:
    """A client of a cluster that serves our kinds."""
    await install_crds(kube)
    return kube


@pytest.fixture
async def operator(cluster: Cluster, api: Client, tmp_path: pathlib.Path) -> AsyncIterator[Operator]:
    """A running operator; it must neither die nor meet a forbidden call during the test."""
    async with operating(cluster, api, tmp_path) as running:
        yield running
