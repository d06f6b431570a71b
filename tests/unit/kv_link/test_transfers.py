"""Whole transfers between two machines in one process, over each transport."""

import asyncio
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from runtime.kv_link.runs import Run
from runtime.kv_link.transport import Faults, Limits, TransportError
from runtime.policy.transfer import Mode
from runtime.wire import Token
from tests.unit.kv_link.machines import LAYOUT, QUICK, Machine, Way, offer, running, soon

WAYS: list[Way] = ["shm", "tcp"]


async def send(
    prompt: Machine, token: Machine, name: str, source: list[int], target: list[int], *, tokens: int = 64
) -> tuple[Any, ...]:
    """One transfer, start to end; the token machine's `arrived` news."""
    prompt.fill(source, name)
    prompt.kv.expect(name, deadline=soon())
    token.kv.arm(name, prompt_machine=prompt.address, blocks=target, deadline=soon())
    _, _, put = await prompt.news.of("ticket", name)
    offer(put, source, tokens=tokens)
    arrived = await token.news.of("arrived", name)
    await prompt.news.of("drained", name)
    return arrived


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([4, 5, 6], [10, 11, 12]),
        ([4, 5, 6], [10, 12, 14]),
        ([4, 6, 8], [10, 11, 12]),
        ([6, 5, 4], [10, 11, 12]),
        ([6, 5, 4], [12, 11, 10]),
        ([31], [0]),
        ([0, 31, 7, 8, 9], [31, 0, 3, 4, 5]),
        (list(range(32)), list(range(31, -1, -1))),
    ],
)
async def test_every_block_lands_where_the_ticket_says(
    tmp_path: Path, way: Way, source: list[int], target: list[int]
) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        _, _, first, stats = await send(prompt, token, "a", source, target)
        assert token.holds(target, "a")
        untouched = set(range(LAYOUT.blocks)) - set(target)
        assert not any(any(token.pool.blocks(layer, block, 1)) for block in untouched for layer in range(3))
        assert first == Token(7)
        assert (stats.transport, stats.bytes) == (way, 3 * len(source) * LAYOUT.block_bytes)
        assert 0 <= stats.seconds < 8
        assert 0 <= stats.visible_seconds < 8
        assert (prompt.news.kinds("a"), token.news.kinds("a")) == (["ticket", "drained"], ["arrived"])
        assert prompt.kv.open_transfers == token.kv.open_transfers == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("tokens", "mode"), [(99, "serialized"), (100, "layerwise"), (101, "layerwise")])
async def test_the_batch_decides_how_it_travels(tmp_path: Path, way: Way, tokens: int, mode: Mode) -> None:
    """Serialized puts nothing before the seal; layer-wise puts a layer as soon as it is offered."""
    put_layers: list[int] = []
    moved = asyncio.Event()
    loop = asyncio.get_running_loop()

    def watched(transfer: str, layer: int, runs: Any) -> Any:
        put_layers.append(layer)
        loop.call_soon_threadsafe(moved.set)
        return [(layer, runs)]

    prompt = Machine("p", tmp_path, way=way, threshold=100, faults=Faults(put=watched))
    token = Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        prompt.fill([1, 2], "a")
        prompt.kv.expect("a", deadline=soon())
        token.kv.arm("a", prompt_machine=prompt.address, blocks=[3, 4], deadline=soon())
        _, _, put = await prompt.news.of("ticket", "a")
        put.begin(tokens)
        put.layer(0, 0, [1, 2])
        if mode == "layerwise":
            async with asyncio.timeout(5):
                await moved.wait()
        else:
            await asyncio.sleep(0.02)
        assert put_layers == ([0] if mode == "layerwise" else [])
        put.layer(1, 0, [1, 2])
        put.layer(2, 0, [1, 2])
        put.seal(Token(7))
        assert (await token.news.of("arrived", "a"))[3].mode == mode
        assert put_layers == [0, 1, 2]
        assert token.holds([3, 4], "a")


@pytest.mark.parametrize("way", WAYS)
async def test_a_prompt_in_chunks(tmp_path: Path, way: Way) -> None:
    """Chunk by chunk, and within each layer by layer; the last block partly filled is a block like others."""
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    source, target = [9, 2, 3, 30, 11], [0, 1, 2, 8, 7]
    async with running(prompt, token):
        prompt.fill(source, "a")
        prompt.kv.expect("a", deadline=soon())
        token.kv.arm("a", prompt_machine=prompt.address, blocks=target, deadline=soon())
        _, _, put = await prompt.news.of("ticket", "a")
        put.begin(10)
        for first, last in ((0, 2), (2, 3), (3, 5)):
            for layer in range(3):
                put.layer(layer, first, source[first:last])
        put.seal(Token(7))
        await token.news.of("arrived", "a")
        assert token.holds(target, "a")


@pytest.mark.parametrize("way", WAYS)
async def test_a_batch_to_two_machines_and_two_requests_to_one(tmp_path: Path, way: Way) -> None:
    prompt, one, two = (Machine(name, tmp_path, way=way) for name in ("p", "t1", "t2"))
    async with running(prompt, one, two):
        places = {"a": (one, [1, 2], [5, 6]), "b": (one, [3], [7]), "c": (two, [4, 5], [5, 6])}
        for name, (token, source, target) in places.items():
            prompt.fill(source, name)
            prompt.kv.expect(name, deadline=soon())
            token.kv.arm(name, prompt_machine=prompt.address, blocks=target, deadline=soon())
        for name in places:
            await prompt.news.of("ticket", name)
        for put in prompt.news.puts.values():
            put.begin(10)
        for layer in range(3):
            for name, (_, source, _) in places.items():
                prompt.news.puts[name].layer(layer, 0, source)
        for put in prompt.news.puts.values():
            put.seal(Token(7))
        for name, (token, _, target) in places.items():
            await token.news.of("arrived", name)
            assert token.holds(target, name)


@pytest.mark.parametrize("way", WAYS)
async def test_a_machine_hands_over_to_itself(tmp_path: Path, way: Way) -> None:
    mixed = Machine("m", tmp_path, way=way)
    async with running(mixed):
        await send(mixed, mixed, "a", [1, 2], [3, 4])
        assert mixed.holds([3, 4], "a")


@pytest.mark.parametrize("way", WAYS)
async def test_either_side_may_be_first(tmp_path: Path, way: Way) -> None:
    prompt, token = Machine("p", tmp_path, way=way), Machine("t", tmp_path, way=way)
    async with running(prompt, token):
        await send(prompt, token, "a", [1], [2])  # expected before it is armed
        prompt.fill([1], "b")
        token.kv.arm("b", prompt_machine=prompt.address, blocks=[3], deadline=soon())
        token.kv.arm("c", prompt_machine=prompt.address, blocks=[4], deadline=soon())
        await send(prompt, token, "d", [1], [5])  # by now the tickets of b and c are there
        assert prompt.kv.open_transfers == 2
        prompt.fill([1], "b")
        prompt.kv.expect("b", deadline=soon())
        _, _, put = await prompt.news.of("ticket", "b")
        offer(put, [1])
        await token.news.of("arrived", "b")
        assert token.holds([3], "b")


@pytest.mark.parametrize("way", WAYS)
async def test_scattered_blocks_beyond_one_frame(tmp_path: Path, way: Way) -> None:
    """More runs than a put may hold, and runs longer than one may be."""
    layout = structs.replace(LAYOUT, blocks=1200, block_bytes=64)
    limits = replace(QUICK, put_bytes=64 * 300)
    prompt = Machine("p", tmp_path, way=way, layout=layout, limits=limits)
    token = Machine("t", tmp_path, way=way, layout=layout, limits=limits)
    source = [*range(0, 1000, 2), *range(1001, 1150), *range(1, 600, 2)]
    target = list(range(1199, 1199 - len(source), -1))
    target[500:649] = sorted(target[500:649])
    async with running(prompt, token):
        await send(prompt, token, "a", source, target)
        assert token.holds(target, "a")


async def test_auto_takes_shared_memory_on_one_host(tmp_path: Path) -> None:
    prompt, token = Machine("p", tmp_path), Machine("t", tmp_path)
    async with running(prompt, token):
        assert (await send(prompt, token, "a", [1], [2]))[3].transport == "shm"


async def test_auto_takes_tcp_between_hosts_and_has_no_common_clock(tmp_path: Path) -> None:
    prompt, token = Machine("p", tmp_path, host="here"), Machine("t", tmp_path, host="there")
    async with running(prompt, token):
        stats = (await send(prompt, token, "a", [1], [2]))[3]
        assert (stats.transport, stats.visible_seconds) == ("tcp", -1.0)


async def test_auto_takes_tcp_into_memory_that_is_not_shared(tmp_path: Path) -> None:
    prompt, token = Machine("p", tmp_path), Machine("t", tmp_path, shared=False)
    async with running(prompt, token):
        assert (await send(prompt, token, "a", [1], [2]))[3].transport == "tcp"


async def test_auto_takes_tcp_where_the_socket_is_out_of_reach(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two pods of one node without a common directory: equal hosts, but nothing to fetch the memory by."""
    prompt, token = Machine("p", tmp_path), Machine("t", tmp_path, run_dir=tmp_path / "run")
    (tmp_path / "run").mkdir()
    async with running(prompt, token):
        next((tmp_path / "run").glob("t-*.kv.sock")).unlink()
        assert (await send(prompt, token, "a", [1], [2]))[3].transport == "tcp"
        assert token.holds([2], "a")
    assert "a better way cannot be had: shm: " in caplog.text


@pytest.mark.fault("LINK-1")
async def test_shared_memory_by_name_is_never_replaced(tmp_path: Path) -> None:
    prompt = Machine("p", tmp_path, way="shm")
    token = Machine("t", tmp_path, way="auto", run_dir=tmp_path / "run")
    (tmp_path / "run").mkdir()
    async with running(prompt, token):
        next((tmp_path / "run").glob("t-*.kv.sock")).unlink()
        prompt.kv.expect("a", deadline=soon())
        token.kv.arm("a", prompt_machine=prompt.address, blocks=[1], deadline=soon())
        _, _, reason = await token.news.of("failed", "a")
        assert "no KV data connection can be had: shm: " in reason
        await token.news.of("fenced", "a")
        await prompt.news.of("drained", "a")


@pytest.mark.fault("LINK-1")
async def test_shared_memory_by_name_needs_shared_memory(tmp_path: Path) -> None:
    prompt, token = Machine("p", tmp_path, way="shm"), Machine("t", tmp_path, way="shm", shared=False)
    async with running(prompt, token):
        token.kv.arm("a", prompt_machine=prompt.address, blocks=[1], deadline=soon())
        assert "not in shared memory" in (await token.news.of("failed", "a"))[2]
        await token.news.of("fenced", "a")


@pytest.mark.fault("LINK-1")
async def test_different_transports_by_name_are_refused_at_the_call(tmp_path: Path) -> None:
    prompt, token = Machine("p", tmp_path, way="shm"), Machine("t", tmp_path, way="tcp")
    async with running(prompt, token):
        token.kv.arm("a", prompt_machine=prompt.address, blocks=[1], deadline=soon())
        assert "'shm' here, 'tcp' at the peer" in (await token.news.of("failed", "a"))[2]
        await token.news.of("fenced", "a")


@pytest.mark.fault("LINK-5")
async def test_a_layout_that_differs_is_refused_at_the_call_by_field(tmp_path: Path) -> None:
    prompt = Machine("p", tmp_path)
    token = Machine("t", tmp_path, layout=structs.replace(LAYOUT, kv_heads=1))
    async with running(prompt, token):
        token.kv.arm("a", prompt_machine=prompt.address, blocks=[1], deadline=soon())
        assert "kv_heads: 2 here, 1 at the peer" in (await token.news.of("failed", "a"))[2]
        await token.news.of("fenced", "a")
        assert not any(token.pool.memory)


async def test_nobody_at_the_address_fails_at_once(tmp_path: Path) -> None:
    token = Machine("t", tmp_path)
    async with running(token):
        token.kv.arm("a", prompt_machine="127.0.0.1:1", blocks=[1], deadline=soon(60))
        assert "127.0.0.1:1" in (await token.news.of("failed", "a"))[2]
        await token.news.of("fenced", "a")
        assert token.kv.open_transfers == 0


async def test_the_data_port_may_be_ipv6(tmp_path: Path) -> None:
    prompt, token = Machine("p", tmp_path, way="tcp"), Machine("t", tmp_path, way="tcp", data_host="::1")
    async with running(prompt, token):
        assert (await send(prompt, token, "a", [1], [2]))[3].transport == "tcp"


async def test_a_machine_that_did_not_answer_is_left_alone_for_a_while(tmp_path: Path) -> None:
    """The next ticket waits for the next call, and no longer than its deadline."""
    token = Machine("t", tmp_path, limits=replace(QUICK, retry_least=60.0, retry_most=60.0))
    async with running(token):
        token.kv.arm("a", prompt_machine="127.0.0.1:1", blocks=[1], deadline=soon())
        await token.news.of("failed", "a")
        token.kv.arm("b", prompt_machine="127.0.0.1:1", blocks=[1], deadline=soon(0.05))
        assert "in time" in (await token.news.of("failed", "b"))[2]
        await token.news.of("fenced", "b")


async def test_a_machine_that_was_useful_is_called_again_at_once(tmp_path: Path) -> None:
    limits = replace(QUICK, retry_least=60.0, retry_most=60.0)
    prompt, token = Machine("p", tmp_path), Machine("t", tmp_path, limits=limits)
    async with running(prompt, token):
        await send(prompt, token, "a", [1], [2])
        prompt.connections[0].close("the network went away")
        token.kv.arm("b", prompt_machine=prompt.address, blocks=[3], deadline=soon())
        await token.news.of("fenced", "b")
        await send(prompt, token, "c", [1], [2])


@pytest.mark.parametrize("host", ["::", "0.0.0.0", "203.0.113.1", "not a host"])
async def test_a_data_host_that_peers_cannot_use_is_refused_at_the_start(tmp_path: Path, host: str) -> None:
    token = Machine("t", tmp_path, data_host=host)
    with pytest.raises(TransportError, match=r"transfer\.data_host"):
        await token.start()
    await token.kv.close()
    token.pool.close()


async def test_a_run_directory_too_deep_for_a_socket(tmp_path: Path) -> None:
    """By name it is an error that says so; on auto there is TCP."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    named = Machine("t", tmp_path, way="shm", run_dir=deep)
    with pytest.raises(TransportError, match="no Unix socket"):
        await named.start()
    await named.kv.close()
    named.pool.close()
    prompt, token = Machine("p", tmp_path), Machine("t", tmp_path, run_dir=deep)
    async with running(prompt, token):
        assert (await send(prompt, token, "a", [1], [2]))[3].transport == "tcp"


async def test_sockets_of_the_dead_are_swept_and_ours_goes_with_us(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("t-dead.kv.sock", "other-dead.kv.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(run / name))
    older, newer = Machine("t", tmp_path, run_dir=run), Machine("t", tmp_path, run_dir=run)
    async with running(older):
        await newer.start()
        assert len(list(run.glob("t-*.kv.sock"))) == 2  # the living one was left alone
        assert not (run / "t-dead.kv.sock").exists()
        await newer.stop()
    assert [path.name for path in run.iterdir()] == ["other-dead.kv.sock"]


async def test_calibration_moves_the_switch_point(tmp_path: Path) -> None:
    """Serialized transfers that take long, layer-wise ones that show little: the switch point falls."""
    prompt = Machine("p", tmp_path, way="tcp", threshold=512, faults=Faults(put=slow_by_tokens))
    token = Machine("t", tmp_path, way="tcp")
    async with running(prompt, token):
        for number in range(20):
            tokens = 20 * (number + 1)
            await send(prompt, token, f"{tokens}", [1], [2], tokens=tokens)
            await send(prompt, token, f"layers-{number}", [1], [2], tokens=512)
        await send(prompt, token, "last", [1], [2], tokens=511)
        assert token.news.find("arrived", "20")[3].mode == "serialized"  # type: ignore[index]
        assert token.news.find("arrived", "last")[3].mode == "layerwise"  # type: ignore[index]


def slow_by_tokens(transfer: str, layer: int, runs: Sequence[Run]) -> Any:
    if transfer.isdigit():
        time.sleep(int(transfer) * 2e-5)
    return [(layer, runs)]


def test_limits_default_to_what_is_documented() -> None:
    assert (Limits().fence_after, Limits().open_within, Limits().quarantine) == (2.0, 5.0, 0.25)
