"""vLLM's tensors as a pool: moved on a CPU, mirrored beside a GPU, whose events are scripted here."""

import os
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from runtime.kv_link.pool import Pool


def meaning() -> Any:
    from runtime.engine.vllm.memory import Meaning

    return Meaning("m", "r", "f", kv_heads=2, head_dim=4, block_tokens=8)


def caches(layers: int = 3, blocks: int = 5, *, shared: bool) -> list[Any]:
    """Caches as vLLM makes them: slices of one storage (since 0.30), or each its own."""
    import torch

    if shared:
        return list(torch.zeros(layers, blocks, 2, 8, 8))
    return [torch.zeros(blocks, 2, 8, 8) for _ in range(layers)]


@pytest.mark.parametrize("shared", [True, False])
def test_moved_tensors_are_the_pool(shared: bool) -> None:
    from runtime.engine.vllm.memory import layout, move

    layers = caches(shared=shared)
    pool = Pool.shared(layout(layers, meaning()))
    move(layers, layers, pool)
    layers[1][3].fill_(1.0)
    assert bytes(pool.blocks(1, 3, 1)) == b"\x00\x00\x80\x3f" * 128
    assert not any(pool.blocks(1, 2, 1)) and not any(pool.blocks(2, 3, 1))  # noqa: PT018
    pool.blocks(2, 4, 1)[:4] = b"\x00\x00\x80\x3f"
    assert layers[2][4].flatten()[0] == 1.0


def test_the_pool_has_its_pages_before_the_first_put() -> None:
    """To get them costs ten times as much as to write them."""
    from runtime.engine.vllm.memory import layout, move

    layers = caches(blocks=500, shared=True)
    pool = Pool.shared(layout(layers, meaning()))
    assert pool.fd is not None
    assert os.stat(pool.fd).st_blocks == 0
    move(layers, layers, pool)
    assert os.stat(pool.fd).st_blocks * 512 >= pool.layout.total_bytes


def test_other_views_of_a_layer_follow() -> None:
    from runtime.engine.vllm.memory import layout, move

    layers = caches(shared=True)
    views = [layer.view(10, 2, 4, 8) for layer in layers]
    pool = Pool.shared(layout(layers, meaning()))
    move([*layers, *views], layers, pool)
    views[2][9].fill_(1.0)
    assert layers[2][4].sum() == 64.0


def test_a_view_of_something_else_is_refused() -> None:
    from runtime.engine.vllm.memory import layout, move

    layers = caches(shared=True)
    pool = Pool.shared(layout(layers, meaning()))
    with pytest.raises(ValueError, match="does not begin with a layer"):
        move([*layers, layers[0][1:]], layers, pool)


def test_blocks_that_are_not_neighbours_are_refused() -> None:
    import torch

    from runtime.engine.vllm.memory import layout

    interleaved = torch.zeros(5, 3, 2, 8, 8).unbind(1)
    with pytest.raises(ValueError, match="choose another attention backend"):
        layout(interleaved, meaning())


def test_layers_of_different_shapes_are_refused() -> None:
    import torch

    from runtime.engine.vllm.memory import layout

    with pytest.raises(ValueError, match="different shapes"):
        layout([torch.zeros(5, 2, 8, 8), torch.zeros(5, 2, 8, 16)], meaning())


@dataclass
class Script:
    """Stands for torch.cuda: events complete when the test says so; what is done in which order is kept."""

    done: set[int] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    made: int = 0

    def Stream(self) -> "ScriptedStream":
        return ScriptedStream(self, "copies")

    def current_stream(self) -> "ScriptedStream":
        return ScriptedStream(self, "model")

    def Event(self) -> "ScriptedEvent":
        self.made += 1
        return ScriptedEvent(self, self.made)

    @contextmanager
    def stream(self, stream: "ScriptedStream") -> Any:
        self.log.append(f"copy on {stream.name}")
        yield


@dataclass
class ScriptedStream:
    script: Script
    name: str

    def wait_event(self, event: "ScriptedEvent") -> None:
        self.script.log.append(f"{self.name} waits for {event.number}")


@dataclass
class ScriptedEvent:
    script: Script
    number: int

    def record(self, stream: ScriptedStream) -> None:
        self.script.log.append(f"{self.number} on {stream.name}")

    def query(self) -> bool:
        return self.number in self.script.done

    def synchronize(self) -> None:
        self.script.log.append(f"wait for {self.number}")
        self.script.done.add(self.number)


class TestMirror:
    @pytest.fixture
    def made(self) -> tuple[Any, Script, list[Any], Pool]:
        from runtime.engine.vllm.memory import Mirror, layout

        script, layers = Script(), caches(shared=True)
        pool = Pool.shared(layout(layers, meaning()))
        return Mirror(layers, pool, script), script, layers, pool

    def test_a_copy_waits_for_its_layer_and_the_put_for_the_copy(self, made: Any) -> None:
        mirror, script, layers, pool = made
        offered: list[int] = []
        layers[0][2].fill_(1.0)
        mirror.save(0, [2], lambda: offered.append(0))
        assert script.log == ["1 on model", "copies waits for 1", "copy on copies", "2 on copies"]
        assert offered == []
        mirror.save(1, [2], lambda: offered.append(1))
        assert offered == []
        script.done.add(2)
        mirror.save(2, [2], lambda: offered.append(2))
        assert offered == [0]
        mirror.flush()
        assert offered == [0, 1, 2]
        assert bytes(pool.blocks(0, 2, 1)) == b"\x00\x00\x80\x3f" * 128

    def test_a_later_copy_never_overtakes(self, made: Any) -> None:
        mirror, script, _, _ = made
        offered: list[int] = []
        script.done.add(4)
        mirror.save(0, [1], lambda: offered.append(0))
        mirror.save(1, [1], lambda: offered.append(1))
        assert offered == []
        mirror.flush()
        assert offered == [0, 1]

    def test_what_has_arrived_is_copied_in(self, made: Any) -> None:
        mirror, _, layers, pool = made
        pool.blocks(1, 3, 1)[:] = b"\x00\x00\x80\x3f" * 128
        mirror.load((3,))
        assert layers[1][3].sum() == 128.0
        assert layers[0].sum() == layers[2].sum() == 0.0


def test_full_graphs_are_refused_where_prompts_run() -> None:
    from runtime.engine.vllm.connector import SplitwiseConnector

    assert SplitwiseConnector.requires_piecewise_for_cudagraph({"prompts": True})
    assert not SplitwiseConnector.requires_piecewise_for_cudagraph({"prompts": False})


def test_an_exception_in_a_hook_is_not_vllms_business() -> None:
    from runtime.engine.vllm.bridge import Bridge
    from runtime.engine.vllm.connector import SplitwiseConnector

    connector = SplitwiseConnector.__new__(SplitwiseConnector)
    connector._bridge, connector._layers = Bridge(), {}
    connector._bridge.token("t", 8)
    connector.save_kv_layer("unknown", None, None)
    assert connector._bridge.failures == {"t": "save_kv_layer: KeyError: 'unknown'"}
    request: Any = object()
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)
    assert connector.request_finished(request, []) == (True, None)


def test_layers_go_by_number() -> None:
    from runtime.engine.vllm.bridge import Bridge
    from runtime.engine.vllm.connector import SplitwiseConnector

    connector = SplitwiseConnector.__new__(SplitwiseConnector)
    connector._bridge = Bridge()
    names: Sequence[str] = [f"model.layers.{n}.self_attn.attn" for n in (0, 1, 10, 11, 2)]
    connector.register_kv_caches({name: name for name in names})
    assert [name.split(".")[2] for name in connector._bridge.caches] == ["0", "1", "2", "10", "11"]
