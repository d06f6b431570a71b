"""What render and diff print."""

import io
from pathlib import Path

import yaml
from rich.console import Console

from controlplane.api import parse
from controlplane.preview import drawn, print_diff, print_render
from controlplane.render import diff, render, steps
from deployments import deployment


def written(folder: Path, name: str, **spec: object) -> Path:
    path = folder / name
    model = {"name": "tiny", "source": {"path": "/models/tiny"}}
    path.write_text(yaml.safe_dump(deployment(**({"model": model} | spec))))
    return path


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=160), out


def sized(prompt: int, token: int) -> dict[str, object]:
    return {"prompt": {"replicas": prompt}, "token": {"replicas": token}}


def test_render_prints_what_would_be_applied(tmp_path: Path) -> None:
    path = written(tmp_path, "a.yaml")
    to, out = console()
    print_render(path, to)
    assert list(yaml.safe_load_all(out.getvalue())) == render(parse(yaml.safe_load(path.read_text())))


def test_nothing_to_do_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, "a.yaml")
    to, out = console()
    print_diff(path, path, to)
    assert out.getvalue() == "nothing would change\n"


def test_a_change_has_reasons_and_steps(tmp_path: Path) -> None:
    old = written(tmp_path, "a.yaml", pools=sized(2, 1))
    new = written(tmp_path, "b.yaml", pools=sized(2, 1), engine={"name": "vllm", "kvBlockTokens": 32})
    to, out = console()
    print_diff(old, new, to)
    text = out.getvalue()
    assert "data.machine.json.kv.block_tokens: 16 -> 32" in text
    assert "its pods are replaced" in text
    assert "machines by StatefulSet" in text


def test_scaling_replaces_nobody() -> None:
    old, new = (parse(deployment(pools=sized(size, 1))) for size in (2, 3))
    [workload] = [each for each in diff(old, new) if each.ref.kind == "StatefulSet"]
    assert (workload.why, workload.restarts) == (("spec.replicas: 2 -> 3",), False)
    assert [list(sizes.values()) for sizes in steps(old, new)] == [[3, 1]]


def test_what_goes_is_named_last() -> None:
    old = parse(deployment(pools=sized(2, 1) | {"mixed": {}}))
    new = parse(deployment(pools=sized(2, 1)))
    gone = [each.ref.kind for each in diff(old, new) if each.action == "remove"]
    assert {"StatefulSet", "Service", "ConfigMap"} == set(gone)


def test_a_status_that_nobody_wrote_is_no_table() -> None:
    assert drawn({}, "tiny") == ["tiny: no operator has looked at it yet"]
