"""vLLM machines, split against unsplit on the same cores, and both ways of moving a KV-cache.

    latency   one request at a time: first token, gap to the second token, whole answer
    visible   what a transfer leaves visible on a link of 60 MB/s, serialized and layer-wise (needs root and
              iproute2)
    load      gaps between tokens while long prompts keep coming: a prompt and a token machine against one
              machine that does both with two threads, and two such machines with one each

A tiny random model in float32, one thread per core, every comparison within one run. The figures are
ratios: they say what splitting does, not how fast a computer is. Run with the vLLM environment's Python:
`make bench-vllm`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import tiny_llama
from bench.kv_visible import NoLink, limited_link
from fleet import Fleet

SHAPE = tiny_llama.Shape(hidden=256, heads=8, kv_heads=2, layers=8)
LENGTHS = (107, 445, 925, 1730)
GIGABIT = 0.48
RATES = (0.5, 1.0, 1.5)
START_SECONDS = 600.0
SPLIT = {"prompt-0": "prompt", "token-0": "token"}
UNSPLIT = {"mixed-0": "mixed"}
LAYERWISE = 64
"""Prompts from so many tokens on go layer by layer: the least that a machine's own calibration chooses."""
PAIR = {"mixed-0": "mixed", "mixed-1": "mixed"}
MACHINES = {"one that does both": (UNSPLIT, 2), "two that do both": (PAIR, 1), "prompt + token": (SPLIT, 1)}
"""On the same two cores: machines, and the threads of each."""


class VllmFleet(Fleet):
    """Machines that run vLLM."""

    def __init__(self, folder: Path, model: Path, machines: dict[str, str], **more: Any) -> None:
        engine = {"engine": "vllm", "sequences": 32}
        super().__init__(folder, model, machines, machine=engine, kv_bytes=128 * 2**20, **more)

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        super().wait_ready(seconds)


@dataclass(slots=True)
class Stream:
    """When the tokens of one answer came, in seconds after the request."""

    at: list[float] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> float:
        return self.at[0]

    @property
    def second_gap(self) -> float:
        return self.at[1] - self.at[0]

    @property
    def whole(self) -> float:
        return self.at[-1]

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.at, self.at[1:], strict=False)]


async def ask(fleet: Fleet, prompt: list[int], tokens: int) -> Stream:
    """One streamed answer. A token's time is that of its event."""
    port = int(fleet.url.rsplit(":", 1)[1])
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logit_bias": broken_characters(),
        "stream": True,
    }
    raw = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started, stream = time.monotonic(), Stream()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        + f"X-Splitwise-Trace: 1\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        + raw
    )
    async for line in reader:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            stream.last = event
            stream.at += [time.monotonic() - started] * len(event.get("choices", []))
    writer.close()
    if len(stream.at) < tokens:
        raise SystemExit(f"an answer of {len(stream.at)} events instead of {tokens}: {stream.last}")
    return stream


@cache
def broken_characters() -> dict[str, int]:
    """A ban on tokens that are only part of a character, for no event comes until the character is whole."""
    tokenizer = tiny_llama.tokenizer()
    return {str(id): -100 for id in range(tiny_llama.VOCABULARY) if tokenizer.decode([id]) in ("", "\ufffd")}


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 384), k=length)


def table(title: str, rows: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}")
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)))


# ---- latency


def latency(model: Path, folder: Path, runs: int) -> dict[str, Any]:
    """Requests go to both fleets in turn, so that a disturbance hits both alike."""
    seen: dict[int, dict[str, list[Stream]]] = {}
    with (
        VllmFleet(folder / "a", model, UNSPLIT) as unsplit,
        VllmFleet(folder / "b", model, SPLIT, layerwise_above=LAYERWISE) as split,
    ):
        for length in LENGTHS:
            seen[length] = {"unsplit": [], "split": []}
            for run in range(runs + 2):
                for name, fleet in (("unsplit", unsplit), ("split", split)):
                    stream = asyncio.run(ask(fleet, prompt(length, 1000 * length + run), 48))
                    if run >= 2:  # the first ones warm up
                        seen[length][name].append(stream)
    measures: dict[str, Callable[[Stream], float]] = {
        "first token": lambda stream: stream.first,
        "second gap": lambda stream: stream.second_gap,
        "whole": lambda stream: stream.whole,
    }
    rows: list[Sequence[object]] = [("prompt", "measure", "unsplit ms", "split ms", "ratio")]
    result: dict[str, Any] = {}
    for length, by_fleet in seen.items():
        for name, measure in measures.items():
            one, two = (1e3 * median(map(measure, by_fleet[fleet])) for fleet in ("unsplit", "split"))
            rows.append((length, name, f"{one:.2f}", f"{two:.2f}", f"{two / one:.3f}"))
            result[f"{length} {name}"] = (one, two)
    table("One request at a time, medians", rows)
    return result


# ---- visible


def visible(model: Path, folder: Path, runs: int) -> dict[str, Any]:
    """Must run inside the limited link."""
    result: dict[str, Any] = {}
    for mode, above in (("serialized", 1_000_000), ("layerwise", 0)):
        with VllmFleet(folder / mode, model, SPLIT, transport="tcp", layerwise_above=above) as fleet:
            for length in LENGTHS:
                seen = []
                for run in range(runs + 1):
                    stream = asyncio.run(ask(fleet, prompt(length, 7000 * length + run), 3))
                    [choice] = stream.last["splitwise"]["choices"]
                    if choice["kv"]["mode"] != mode:
                        raise SystemExit(f"asked for {mode}, got {choice['kv']}")
                    seen.append((1e3 * choice["kv"]["visible_seconds"], 1e3 * stream.second_gap))
                result[f"{mode} {length}"] = [median(values) for values in zip(*seen[1:], strict=True)]
    rows: list[Sequence[object]] = [
        ("prompt", "serialized ms", "layer-wise ms", "gap serialized", "gap layer-wise")
    ]
    for length in LENGTHS:
        (one, one_gap), (two, two_gap) = result[f"serialized {length}"], result[f"layerwise {length}"]
        rows.append((length, f"{one:.1f}", f"{two:.1f}", f"{one_gap:.1f}", f"{two_gap:.1f}"))
    table(
        f"Visible time of a transfer over {1e3 * GIGABIT / 8:.0f} MB/s, medians, and the second token's gap",
        rows,
    )
    return result


def in_limited_link(arguments: list[str]) -> int:
    """This script again, in a network namespace of its own."""
    with limited_link(GIGABIT) as namespace:
        command = ["ip", "netns", "exec", namespace, sys.executable, __file__, *arguments]
        return subprocess.run(command, check=False).returncode


# ---- load


@dataclass(slots=True)
class Traffic:
    """Streams that decode all the time, and long prompts that come at a steady rate."""

    streams: int = 6
    tokens: int = 150
    prompts_per_second: float = 1.0
    prompt_tokens: int = 1200
    seconds: float = 20.0


async def drive(fleet: Fleet, traffic: Traffic) -> tuple[list[float], float]:
    """Gaps between tokens of the decoding streams, and output tokens per second."""
    end = time.monotonic() + traffic.seconds
    gaps: list[float] = []
    tokens = 0

    async def decode(number: int) -> None:
        nonlocal tokens
        while time.monotonic() < end:
            stream = await ask(fleet, prompt(40, number), traffic.tokens)
            gaps.extend(stream.gaps)
            tokens += len(stream.at)

    async def interrupt() -> None:
        asked = []
        for number in range(int(traffic.seconds * traffic.prompts_per_second)):
            asked.append(asyncio.ensure_future(ask(fleet, prompt(traffic.prompt_tokens, 9000 + number), 2)))
            await asyncio.sleep(1 / traffic.prompts_per_second)
        await asyncio.gather(*asked)

    started = time.monotonic()
    await asyncio.gather(interrupt(), *(decode(number) for number in range(traffic.streams)))
    return gaps, tokens / (time.monotonic() - started)


def load(model: Path, folder: Path, runs: int) -> dict[str, Any]:
    """Several rates of prompts, all of them shown: at a low one interrupted gaps are too few to move P99."""
    result: dict[str, Any] = {}
    for name, (machines, threads) in MACHINES.items():
        with VllmFleet(folder / name.replace(" ", "-"), model, machines, threads=threads) as fleet:
            asyncio.run(drive(fleet, Traffic(seconds=3.0)))
            for rate in RATES:
                traffic = Traffic(prompts_per_second=rate)
                seen = [asyncio.run(drive(fleet, traffic)) for _ in range(max(1, runs // 5))]
                gaps = sorted(1e3 * gap for part, _ in seen for gap in part)
                shares = [gaps[int(share * (len(gaps) - 1))] for share in (0.5, 0.9, 0.99, 0.999, 1.0)]
                result[f"{rate:g} {name}"] = (*shares, median(tokens for _, tokens in seen))
    rows: list[Sequence[object]] = [
        ("prompts/s and machines", "P50 ms", "P90", "P99", "P99.9", "max", "tokens/s")
    ]
    for rate in RATES:
        for name in MACHINES:
            *shares, tokens = result[f"{rate:g} {name}"]
            rows.append((f"{rate:g} {name}", *(f"{value:.1f}" for value in shares), f"{tokens:.0f}"))
    table("Gaps between tokens while long prompts come", rows)
    return result


# ---- the command


PARTS = {"latency": latency, "visible": visible, "load": load}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=[*PARTS], help="latency, visible, load")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with scratch() as folder:
        model = tiny_llama.make(folder / "model", SHAPE)
        for part in options.parts:
            if part == "visible" and not options.inside:
                try:
                    in_limited_link(["visible", "--inside", "--runs", str(options.runs)])
                except NoLink as why:
                    print(f"\nvisible: left out, no limited link here ({why})")
                continue
            PARTS[part](model, folder / part, options.runs)
    if not options.inside:
        print(f"\non {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end")
    return 0


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vllm-split-") as folder:
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
