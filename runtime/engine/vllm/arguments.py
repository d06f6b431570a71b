"""From a machine's settings to vLLM's arguments.

Ours come in three layers: defaults that the user's `engine_args` may override, those arguments, and what
follows from the machine's own settings, which nobody may. Arguments that begin with --splitwise- are for
this package.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.config import MachineSettings

_ROLES = {"prompt": "kv_producer", "token": "kv_consumer", "mixed": "kv_both"}


@dataclass(frozen=True, slots=True)
class Switches:
    """any_vllm: try a vLLM outside the supported window. recompute_first_token: a token machine computes the
    prompt's last token again instead of continuing behind the first sampled one, which writes on fields of
    vLLM's requests. stock_scheduler: let vLLM batch the prompts its own way."""

    any_vllm: bool = False
    recompute_first_token: bool = False
    stock_scheduler: bool = False


def split(arguments: Sequence[str]) -> tuple[Switches, list[str]]:
    """Our own switches, and what is left for vLLM. Raises ValueError for an unknown switch."""
    ours = {arg for arg in arguments if arg.startswith("--splitwise-")}
    known = {"--splitwise-" + name.replace("_", "-"): name for name in Switches.__slots__}
    if unknown := ours - known.keys():
        raise ValueError(f"engine_args: {min(unknown)} is unknown; there are {', '.join(known)}")
    return Switches(**{known[arg]: True for arg in ours}), [arg for arg in arguments if arg not in ours]


def compose(
    settings: MachineSettings, *, model: str, engine_id: str, cpu: bool, rest: Sequence[str]
) -> list[str]:
    """The command line that vLLM's own parser turns into its configuration."""
    return [*_defaults(cpu), *rest, *_owned(settings, model=model, engine_id=engine_id, cpu=cpu)]


def _defaults(cpu: bool) -> list[str]:
    """On a CPU: numbers that agree however requests are batched, and a start within seconds."""
    return ["--dtype", "float32", "--enforce-eager"] if cpu else []


def _owned(settings: MachineSettings, *, model: str, engine_id: str, cpu: bool) -> list[str]:
    arguments: dict[str, Any] = {
        "--model": model,
        "--served-model-name": settings.model.name,
        "--block-size": block_tokens(settings.kv.block_tokens, cpu=cpu),
        "--max-model-len": settings.context_tokens or "auto",  # what the model and the KV memory allow
        "--max-num-seqs": settings.sequences,
        "--max-num-batched-tokens": settings.prompt_batch_tokens + settings.sequences,
        "--kv-transfer-config": json.dumps(
            {
                "engine_id": engine_id,
                "kv_connector": "SplitwiseConnector",
                "kv_connector_module_path": "runtime.engine.vllm.connector",
                "kv_role": _ROLES[settings.role],
                "kv_connector_extra_config": {"prompts": settings.role != "token"},
            }
        ),
    }
    if cpu or "memory_bytes" in settings.kv.model_fields_set:
        arguments["--kv-cache-memory-bytes"] = settings.kv.memory_bytes
    switches = [
        "--skip-tokenizer-init",
        "--no-use-tqdm-on-load",
        "--disable-hybrid-kv-cache-manager",
        "--no-async-scheduling",
    ]
    return [*switches, "--disable-log-stats", *(str(part) for pair in arguments.items() for part in pair)]


def block_tokens(wanted: int, *, cpu: bool) -> int:
    """Tokens per block: vLLM's CPU kernels take multiples of 32."""
    return -(-wanted // 32) * 32 if cpu else wanted
