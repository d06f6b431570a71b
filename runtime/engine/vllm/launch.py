"""Puts the parts together: configuration, core, pool, engine."""

import secrets
from pathlib import Path
from typing import Any

from runtime import log
from runtime.config import MachineSettings, ModelSettings
from runtime.engine import EngineInfo, EngineLimits
from runtime.engine.vllm import arguments
from runtime.engine.vllm.bridge import BRIDGES, Bridge
from runtime.engine.vllm.core import Core, prepare
from runtime.engine.vllm.engine import VllmEngine
from runtime.engine.vllm.fingerprint import fingerprint
from runtime.kv_link.layout import Layout
from runtime.kv_link.pool import Pool

logger = log.logger("vllm")


def launch(settings: MachineSettings, limits: EngineLimits, *, model: Path) -> tuple[VllmEngine, Pool]:
    """Raises ValueError with a sentence if vLLM is missing or unknown, or refuses what it is given."""
    switches, rest = arguments.split(settings.engine_args)
    version = prepare(switches, compiles="--no-enforce-eager" in rest)
    from vllm.platforms import current_platform

    cpu = bool(current_platform.is_cpu())
    engine_id = secrets.token_hex(8)
    bridge = BRIDGES[engine_id] = Bridge(limits.prompt_batch_tokens)
    command_line = arguments.compose(settings, model=str(model), engine_id=engine_id, cpu=cpu, rest=rest)
    core = Core(command_line, bridge, switches)
    layout = _layout(core, bridge, settings.model, version, fingerprint(model))
    pool, saver = _pool(core, bridge, layout, cpu=cpu)
    bridge.saver, bridge.layers, bridge.block_tokens = saver, pool.layout.layers, pool.layout.block_tokens
    if settings.role == "mixed":  # two machines full of each other's reservations would wait for ever
        bridge.reservable = pool.layout.blocks // 2
    info = _info(core.config, settings, pool.layout)
    logger.info("vLLM is up", version=version, cpu=cpu, kv_blocks=pool.layout.blocks, kv=pool.layout.format)
    return VllmEngine(core, bridge, info=info, loader=saver, switches=switches), pool


def _layout(core: Core, bridge: Bridge, model: ModelSettings, version: str, weights: str) -> Layout:
    from runtime.engine.vllm import memory

    config = core.config
    meaning = memory.Meaning(
        model=model.name,
        revision=f"{model.revision}+{weights}",
        format=f"vllm {version} {_kernel(config)} {_rope(config.model_config.hf_config)}",
        kv_heads=int(config.model_config.get_num_kv_heads(config.parallel_config)),
        head_dim=int(config.model_config.get_head_size()),
        block_tokens=int(config.cache_config.block_size),
    )
    return memory.layout(list(bridge.caches.values()), meaning)


def _pool(core: Core, bridge: Bridge, layout: Layout, *, cpu: bool) -> tuple[Pool, Any]:
    from runtime.engine.vllm import memory

    pool = Pool.shared(layout)
    layers = list(bridge.caches.values())
    if not cpu:
        return pool, memory.Mirror(layers, pool)
    memory.move(core.kv_tensors(), layers, pool)
    return pool, memory.SameMemory()


def _info(config: Any, settings: MachineSettings, layout: Layout) -> EngineInfo:
    model = config.model_config
    return EngineInfo(
        model=settings.model.name,
        context_tokens=int(model.max_model_len),
        vocabulary=int(model.get_vocab_size()),
        end_tokens=_end_tokens(model),
        layout=layout,
    )


def _end_tokens(model: Any) -> frozenset[int]:
    """What ends an answer, by the model's configuration and its generation defaults."""
    generation = model.try_get_generation_config() or {}
    found = (getattr(model.hf_config, "eos_token_id", None), generation.get("eos_token_id"))
    return frozenset(
        id for value in found if value is not None for id in (value if isinstance(value, list) else [value])
    )


def _kernel(config: Any) -> str:
    """What decides the order of bytes inside a block: attention backend and, on CPUs, instruction set."""
    layers = config.compilation_config.static_forward_context.values()
    kernels = {
        (type(layer.impl).__name__, getattr(layer, "isa", "any"), getattr(layer, "kv_cache_dtype", "auto"))
        for layer in layers
        if hasattr(layer, "impl")
    }
    return "+".join("-".join(map(str, kernel)) for kernel in sorted(kernels))


def _rope(config: Any) -> str:
    """What turns positions into keys, as far as a configuration may change it at load time."""
    names = ("rope_parameters", "rope_theta", "rope_scaling", "quantization_config")
    found = {name: value for name in names if (value := getattr(config, name, None)) is not None}
    if "rope_parameters" in found:  # the newer name of the two others
        found = {name: value for name, value in found.items() if name not in ("rope_theta", "rope_scaling")}
    return ",".join(f"{name}={value}" for name, value in found.items())
