"""vLLM's own load generator, unchanged, against the router in front of split machines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet import Fleet

RUN = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.mark.slow
@pytest.mark.parametrize("split", ["shm"], indirect=True)
@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_vllm_bench_serve(split: Fleet, model: Path, tmp_path: Path, backend: str) -> None:
    """What `vllm bench serve` does; the command itself cannot start from a CPU build's package."""
    endpoint = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}[backend]
    arguments = {
        "--backend": backend,
        "--base-url": split.url,
        "--endpoint": endpoint,
        "--model": "tiny",
        "--tokenizer": str(model),
        "--dataset-name": "random",
        "--random-input-len": "60",
        "--random-output-len": "12",
        "--num-prompts": "8",
        "--max-concurrency": "4",
        "--result-dir": str(tmp_path),
        "--result-filename": "result.json",
    }
    words = [word for pair in arguments.items() for word in pair]
    command = [sys.executable, "-c", RUN, *words, "--ignore-eos", "--save-result", "--disable-tqdm"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == 8
    assert result["total_output_tokens"] == 8 * 12
    assert result["mean_ttft_ms"] > 0
