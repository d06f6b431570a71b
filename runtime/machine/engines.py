"""Opens the engine that a machine is asked to run, over a KV pool that kv_link can reach."""

from runtime.config import MachineSettings
from runtime.engine import Engine, EngineLimits
from runtime.kv_link.pool import Pool


def open_engine(settings: MachineSettings) -> tuple[Engine, Pool]:
    """Takes seconds: loads weights. Raises ValueError or InvalidRequest with a sentence if it cannot."""
    limits = EngineLimits(settings.prompt_batch_tokens, settings.sequences)
    if settings.engine == "vllm":
        from runtime.engine.vllm import open_vllm

        return open_vllm(settings, limits)
    from runtime.engine.reference import open_reference

    return open_reference(settings, limits)
