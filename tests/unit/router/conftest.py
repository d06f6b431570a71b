"""Routers over fake machines."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import tiny_llama
from fake_machine import FakeMachine
from front import Front, Serve, serving
from runtime.tokenizer import Tokenizer, load


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.make(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Tokenizer:
    return load(model)


@pytest.fixture
def serve(tmp_path: Path, model: Path, tokenizer: Tokenizer) -> Serve:
    """`async with serve(machines, setting=...) as front`."""

    def _serve(machines: Sequence[FakeMachine] = (), **settings: Any) -> AbstractAsyncContextManager[Front]:
        return serving(tmp_path, model, tokenizer, machines, **settings)

    return _serve


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[FakeMachine, FakeMachine]]:
    """A prompt machine and a token machine, driven by the test."""
    async with (
        FakeMachine(tmp_path, "prompt-0", "prompt") as prompt,
        FakeMachine(tmp_path, "token-0", "token") as token,
    ):
        yield prompt, token
