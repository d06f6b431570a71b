"""What a deployment becomes on one computer: settings files and programs."""

import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from controlplane.api import InvalidDeployment, parse
from deployments import deployment
from local.plan import Plan, check, free_port, plan, unused
from runtime.config import MachineSettings, RouterSettings

RUN = Path("/run/splitwise/tiny")
WEIGHTS = Path("/weights/tiny.gguf")


def planned(**spec: Any) -> Plan:
    ports = count(9001)
    document = deployment(**{"engine": {"name": "reference"}, **spec})
    return plan(parse(document), folder=RUN, weights=WEIGHTS, port=8000, port_of=lambda: next(ports))


def machine(planned: Plan, name: str) -> MachineSettings:
    settings = planned.settings[f"{name}.json"]
    assert isinstance(settings, MachineSettings)
    return settings


def router(planned: Plan) -> RouterSettings:
    settings = planned.settings["router.json"]
    assert isinstance(settings, RouterSettings)
    return settings


def test_every_machine_of_every_pool_is_a_program_and_the_router_knows_it() -> None:
    made = planned(pools={"prompt": {"replicas": 2}, "token": {}, "mixed": {"replicas": 0}})
    assert [(each.name, each.role) for each in made.programs] == [
        ("prompt-0", "prompt"),
        ("prompt-1", "prompt"),
        ("token-0", "token"),
        ("router", "router"),
    ]
    assert {each.name: each.address for each in router(made).machines} == {
        name: f"unix:{RUN}/{name}.sock" for name in ("prompt-0", "prompt-1", "token-0")
    }
    assert all(machine(made, each.name).listen == each.address for each in router(made).machines)
    assert set(made.settings) == {f"{each.name}.json" for each in made.programs}


def test_programs_read_their_settings_and_log_into_the_run_folder() -> None:
    program = planned().programs[0]
    assert program.command == (
        *(sys.executable, "-P", "-m", "runtime.machine"),
        *("--config", f"{RUN}/prompt-0.json"),
    )
    assert program.log == RUN / "prompt-0.log"
    assert program.observe == "127.0.0.1:9001"


def test_everything_written_reaches_the_settings() -> None:
    made = planned(
        model={"name": "big", "source": {"path": "/elsewhere"}},
        engine={"name": "reference", "contextTokens": 4096, "kvBlockTokens": 32},
        pools={"prompt": {"kvCache": {"memory": "64Mi"}}, "token": {}},
        kvTransfer={"transport": "tcp", "layerwiseAboveTokens": 100},
        scheduling={"promptBatchTokens": 999, "sequences": 7, "waitForMachines": "3s", "restarts": 5},
        degradedMode="recompute",
        requestTimeout="2m",
        drainSeconds=7,
    )
    prompt = machine(made, "prompt-0")
    assert prompt.model.name == "big"
    assert prompt.model.path == WEIGHTS
    assert prompt.context_tokens == 4096
    assert prompt.kv.block_tokens == 32
    assert prompt.kv.memory_bytes == 64 * 2**20
    assert machine(made, "token-0").kv.memory_bytes == 512 * 2**20
    assert prompt.transfer.transport == "tcp"
    assert prompt.transfer.layerwise_above_tokens == 100
    assert (prompt.prompt_batch_tokens, prompt.sequences) == (999, 7)
    assert prompt.degraded_mode == router(made).degraded_mode == "recompute"
    assert router(made).request_timeout_seconds == 120.0
    assert router(made).wait_for_machines_seconds == 3.0
    assert router(made).restarts == 5
    assert prompt.drain_seconds == router(made).drain_seconds == 7
    assert router(made).listen == "127.0.0.1:8000"
    assert prompt.link == router(made).link
    assert prompt.link.secret_file == RUN / "secret"


def test_settings_survive_their_files(tmp_path: Path) -> None:
    for name, settings in planned().settings.items():
        (tmp_path / name).write_text(settings.model_dump_json())
        assert type(settings).read(tmp_path / name) == settings  # type: ignore[attr-defined]
        assert json.loads((tmp_path / name).read_text())


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"kvTransfer": {"transport": "nixl"}}, "spec.kvTransfer.transport"),
        ({"kvTransfer": {"transport": "mscclpp"}}, "spec.kvTransfer.transport"),
        ({"kvTransfer": {"requireRDMA": True}}, "spec.kvTransfer.requireRDMA"),
    ],
)
def test_what_no_local_process_can_do_is_refused(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidDeployment) as caught:
        check(parse(deployment(**{"engine": {"name": "reference"}, **spec})))
    assert [each for each, _, _ in caught.value.problems] == [path]


def test_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = {"prompt": {"replicas": 2, "kvCache": {"memory": "1Gi"}}, "token": {"kvCache": {"memory": "1Gi"}}}
    wanted = parse(deployment(engine={"name": "reference"}, pools=pools))
    monkeypatch.setattr("local.plan.memory_bytes", lambda: 3 * 2**30)
    check(wanted)
    monkeypatch.setattr("local.plan.memory_bytes", lambda: 3 * 2**30 - 1)
    with pytest.raises(InvalidDeployment, match=r"want 3\.0 GiB together; this computer has 3\.0"):
        check(wanted)


def test_vllm_machines_run_where_vllm_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their own environment, with our modules last in its search; the router stays in this one."""
    wanted = parse(deployment(engine={"name": "vllm", "args": ["--dtype", "bfloat16"]}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    monkeypatch.delenv("SPLITWISE_VLLM_PYTHON", raising=False)
    with pytest.raises(InvalidDeployment, match="make vllm-env"):
        check(wanted)
    monkeypatch.setenv("SPLITWISE_VLLM_PYTHON", "/vllm/python")
    check(wanted)
    planned = plan(wanted, folder=tmp_path, weights=tmp_path, port=8000)
    assert {program.command[0] for program in planned.programs[:-1]} == {"/vllm/python"}
    assert planned.programs[-1].command[0] == sys.executable
    machine = planned.settings["prompt-0.json"]
    assert isinstance(machine, MachineSettings)
    assert (machine.engine, machine.engine_args) == ("vllm", ("--dtype", "bfloat16"))


def test_what_has_no_effect_is_named() -> None:
    plain = parse(deployment(engine={"name": "reference"}))
    check(plain)
    assert list(unused(plain)) == []
    pool: dict[str, Any] = {"podTemplate": {"spec": {}}}
    written = parse(
        deployment(
            design="HHcap",
            pools={"prompt": pool, "token": {}},
            router={"replicas": 2},
            scheduling={"mixedPool": {"preemptions": 1}},
            slo={},
        )
    )
    assert set(unused(written)) == {
        "pools.prompt.gpu",
        "pools.prompt.podTemplate",
        "pools.token.gpu",
        "pools.token.powerCap",
        "router.replicas",
        "scheduling.mixedPool",
        "slo",
    }


def test_a_free_port_can_be_had() -> None:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", free_port()))
