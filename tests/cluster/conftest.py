"""Loads the fixtures of the cluster tier."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("cluster.fixtures")
