"""Tiny models, made once per run."""

from pathlib import Path

import pytest

import tiny_llama


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.make(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.make(tmp_path_factory.mktemp("qwen2"), tiny_llama.QWEN2)
