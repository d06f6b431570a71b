"""Opens the engine that a machine is asked to run, over a KV pool that kv_link can reach."""

from runtime.config import MachineSettings
from runtime.engine import Engine, EngineLimits
from runtime.kv_link.pool import Pool


def open_engine(settings: MachineSettings) -> tuple[Engine, Pool]:
    """Takes seconds: loads weights. Raises ValueError with a sentence if they cannot be served."""
    limits = EngineLimits(settings.prompt_batch_tokens, settings.sequences)
    if settings.engine == "vllm":
        from runtime.engine.vllm import open_vllm

        return open_vllm(settings, limits)
    return _open_reference(settings, limits)


def _open_reference(settings: MachineSettings, limits: EngineLimits) -> tuple[Engine, Pool]:
    from runtime.engine.reference.checkpoint import layout_of
    from runtime.engine.reference.engine import EngineOptions, ReferenceEngine

    model, kv = settings.model, settings.kv
    layout = layout_of(
        model.path,
        name=model.name,
        revision=model.revision,
        memory_bytes=kv.memory_bytes,
        block_tokens=kv.block_tokens,
        cache_dir=settings.cache_dir,
    )
    pool = Pool.shared(layout)
    mixed = settings.role == "mixed"
    options = EngineOptions(limits, settings.context_tokens, reservable=0.5 if mixed else 1.0)
    engine = ReferenceEngine.open(
        model.path, name=model.name, pool=pool, options=options, cache_dir=settings.cache_dir
    )
    return engine, pool
