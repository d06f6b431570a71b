"""vLLM as a machine's engine: no fork, no patch, thin adapters around one in-process engine core.

    engine        runtime.engine.Engine over the core          asks       what passes between the two
    core          vLLM's engine core, its requests             arguments  settings into vLLM's arguments
    bridge        what all the parts say to each other         memory     the KV-cache as a pool of kv_link
    connector     vLLM's KV connector (hooks)                  versions   the supported window, probes
    scheduler     the paper's batches around vLLM's            sampler    exact choice of tokens
    convert       GGUF into a folder that vLLM can load        environment  where a Python with vLLM is

Only `connector`, `core`, `sampler`, `scheduler` and `memory` import vllm or torch, and nothing imports them
before an engine is opened.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from runtime.config import MachineSettings
from runtime.engine import EngineLimits
from runtime.kv_link.pool import Pool

if TYPE_CHECKING:
    from runtime.engine.vllm.engine import VllmEngine


def open_vllm(settings: MachineSettings, limits: EngineLimits) -> tuple["VllmEngine", Pool]:
    """A running engine and the pool that is its KV-cache. Takes seconds to minutes: loads weights. Raises
    ValueError with a sentence that says what to change."""
    from runtime.engine.vllm.launch import launch

    return launch(settings, limits, model=_folder(settings))


def _folder(settings: MachineSettings) -> Path:
    path = settings.model.path
    if path.suffix != ".gguf":
        return path
    from runtime.engine.vllm.convert import converted

    return converted(path, settings.cache_dir)
