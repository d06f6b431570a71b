"""What follows from settings, version and place, before vLLM is imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_llama
from runtime.config import KvSettings, LinkSettings, MachineSettings, ModelSettings, Role
from runtime.engine.vllm import arguments, environment, versions
from runtime.engine.vllm.fingerprint import fingerprint


def settings(role: Role = "prompt", **more: object) -> MachineSettings:
    return MachineSettings.model_validate(
        {
            "name": "m",
            "role": role,
            "listen": "unix:/m",
            "model": ModelSettings(name="llama", path=Path("/models/llama")),
            "link": LinkSettings(secret_file=Path("/secret")),
            **more,
        }
    )


def compose(
    role: Role = "prompt", *, cpu: bool = True, rest: tuple[str, ...] = (), **more: object
) -> list[str]:
    return arguments.compose(settings(role, **more), model="/models/llama", engine_id="e", cpu=cpu, rest=rest)


def value(command: list[str], name: str) -> str:
    """What argparse would take: the last one."""
    return command[len(command) - command[::-1].index(name)]


class TestArguments:
    def test_the_user_overrides_defaults_but_not_the_machine(self) -> None:
        command = compose(rest=("--dtype", "bfloat16", "--block-size", "7"))
        assert value(command, "--dtype") == "bfloat16"
        assert value(command, "--block-size") == "32"

    def test_defaults_are_for_cpus_only(self) -> None:
        assert "--enforce-eager" in compose()
        assert "--enforce-eager" not in compose(cpu=False)
        assert "--dtype" not in compose(cpu=False)

    @pytest.mark.parametrize(
        ("role", "kv_role", "prompts"),
        [("prompt", "kv_producer", True), ("token", "kv_consumer", False), ("mixed", "kv_both", True)],
    )
    def test_the_role_decides_the_connectors(self, role: Role, kv_role: str, prompts: bool) -> None:
        config = json.loads(value(compose(role), "--kv-transfer-config"))
        assert (config["kv_role"], config["engine_id"]) == (kv_role, "e")
        assert config["kv_connector_extra_config"] == {"prompts": prompts}

    def test_a_batch_holds_its_prompts_and_every_sequence(self) -> None:
        command = compose(prompt_batch_tokens=1000, sequences=24)
        assert value(command, "--max-num-batched-tokens") == "1024"
        assert value(command, "--max-num-seqs") == "24"

    def test_kv_memory_is_vllms_choice_on_a_gpu_unless_given(self) -> None:
        assert "--kv-cache-memory-bytes" not in compose(cpu=False)
        command = compose(cpu=False, kv=KvSettings(memory_bytes=5))
        assert value(command, "--kv-cache-memory-bytes") == "5"
        assert value(compose(), "--kv-cache-memory-bytes") == str(512 * 2**20)

    def test_the_context_is_what_fits_unless_given(self) -> None:
        assert value(compose(), "--max-model-len") == "auto"
        assert value(compose(context_tokens=4096), "--max-model-len") == "4096"

    @pytest.mark.parametrize(
        ("wanted", "cpu", "got"), [(16, True, 32), (33, True, 64), (128, True, 128), (16, False, 16)]
    )
    def test_blocks_suit_the_kernels(self, wanted: int, cpu: bool, got: int) -> None:
        assert arguments.block_tokens(wanted, cpu=cpu) == got

    def test_our_switches_are_taken_out(self) -> None:
        switches, rest = arguments.split(
            ["--seed", "3", "--splitwise-any-vllm", "--splitwise-stock-scheduler"]
        )
        assert rest == ["--seed", "3"]
        assert switches == arguments.Switches(any_vllm=True, stock_scheduler=True)
        assert arguments.split([]) == (arguments.Switches(), [])

    def test_an_unknown_switch_is_refused(self) -> None:
        with pytest.raises(ValueError, match="--splitwise-magic is unknown; there are --splitwise-any-vllm"):
            arguments.split(["--splitwise-magic"])


class TestVersions:
    @pytest.mark.parametrize("version", ["0.27.0", "0.27.1", "0.30.0", "0.32.0", "0.32.5+cpu"])
    def test_inside_the_window(self, version: str) -> None:
        versions.check(version)

    @pytest.mark.parametrize("version", ["0.26.9", "0.33.0", "1.27.0", "dev", "0"])
    def test_outside_it_only_on_request(self, version: str) -> None:
        with pytest.raises(ValueError, match=r"supported window 0\.27 to 0\.32.*--splitwise-any-vllm"):
            versions.check(version)
        versions.check(version, insist=True)

    def test_what_a_version_lacks(self) -> None:
        assert versions.missing("text", ["upper", "shout", "lower"]) == ["shout"]

    def test_the_refusal_names_a_switch_that_exists(self) -> None:
        assert arguments.split([versions.OVERRIDE])[0].any_vllm


class TestEnvironment:
    def test_the_newest_environment_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.delenv("SPLITWISE_VLLM_PYTHON", raising=False)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ValueError, match="make vllm-env"):
            environment.python()
        for age, name in enumerate(["vllm-cpu-new", "vllm-cpu-old"]):
            mark = tmp_path / "splitwise-operator" / "venvs" / name / ".complete"
            mark.parent.mkdir(parents=True)
            mark.touch()
            import os

            os.utime(mark, (1000 - age, 1000 - age))
        assert environment.python().parts[-3:] == ("vllm-cpu-new", "bin", "python")
        monkeypatch.setenv("SPLITWISE_VLLM_PYTHON", "/other/python")
        assert environment.python() == Path("/other/python")

    def test_a_python_that_has_vllm_is_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
        assert environment.python() == Path(sys.executable)


class TestFingerprint:
    def test_equal_models_under_two_paths_are_equal(self, tmp_path: Path) -> None:
        one, two = tiny_llama.make(tmp_path / "one"), tiny_llama.make(tmp_path / "two")
        assert fingerprint(one) == fingerprint(two)
        assert len(fingerprint(one)) == 16

    @pytest.mark.parametrize("place", [0.1, 0.5, 0.999])
    def test_a_page_of_other_weights_shows(self, tmp_path: Path, place: float) -> None:
        folder = tiny_llama.make(tmp_path / "model")
        before = fingerprint(folder)
        file = folder / "model.safetensors"
        data = bytearray(file.read_bytes())
        at = min(int(len(data) * place), len(data) - 4096)
        data[at : at + 4096] = bytes(4096)
        file.write_bytes(data)
        assert fingerprint(folder) != before

    def test_another_configuration_shows(self, tmp_path: Path) -> None:
        folder = tiny_llama.make(tmp_path / "model")
        before = fingerprint(folder)
        config = folder / "config.json"
        config.write_text(config.read_text().replace("10000.0", "20000.0"))
        assert fingerprint(folder) != before

    def test_no_weights_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no weights"):
            fingerprint(tmp_path)


def test_nothing_heavy_is_imported_before_an_engine_is_opened() -> None:
    code = (
        "import sys, runtime.engine.vllm, runtime.engine.vllm.engine, runtime.engine.vllm.arguments;"
        "assert not {'vllm', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_one_module_knows_vllms_kv_transfer_package() -> None:
    folder = Path(arguments.__file__).parent
    importers = [
        path.name for path in folder.glob("*.py") if "vllm.distributed.kv_transfer" in path.read_text()
    ]
    assert importers == ["connector.py"]


def test_another_python_runs_our_modules_from_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own packages first and ours at the end of the search, wherever it is started."""
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("SPLITWISE_VLLM_PYTHON", str(other))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    command = environment.command("runtime.machine")
    assert command[0] == str(other)
    run = [*command, "--config", str(tmp_path / "missing.json")]
    ended = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "missing.json: No such file" in ended.stderr
    assert ended.returncode == 2
