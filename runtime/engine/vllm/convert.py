"""A GGUF file as the folder of config and safetensors that vLLM loads, made once per host.

    <cache>/vllm/<digest>/        appears whole or not at all; float32, one file per layer

vLLM on a CPU does not compute with GGUF's quantised blocks, so the weights are dequantised to what the
reference engine computes with too. `python -m runtime.engine.vllm.convert FILE` makes one ahead of time.
"""

import argparse
import contextlib
import fcntl
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from safetensors.numpy import save_file

from runtime.engine.reference.architecture import Architecture, inverse_frequencies
from runtime.engine.reference.checkpoint import default_cache, digest_of
from runtime.engine.reference.gguf_file import GgufFile
from runtime.engine.reference.weights import Progress

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def converted(path: Path, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The folder for a GGUF file. Raises ValueError with a sentence if the file cannot be used, OSError if
    the cache cannot be written. `progress` is told (tensors written, tensors to write)."""
    source = GgufFile(path)
    cache = cache_dir or default_cache()
    folder = cache / "vllm" / digest_of(source, cache)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not folder.exists():  # another process may have been faster
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            _write(source, partial, progress or (lambda done, total: None))
            partial.rename(folder)
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the kernel lets go for one that dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(source: GgufFile, folder: Path, progress: Progress) -> None:
    shape = source.architecture
    (folder / "config.json").write_text(json.dumps(_config(shape, source.path), indent=1))
    names = sorted(shape.shapes())
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault(_part(name), []).append(name)
    done = 0
    for part, members in parts.items():
        save_file({name: source.tensor(name) for name in members}, folder / part, {"format": "pt"})
        done += len(members)
        progress(done, len(names))
    index = {"metadata": {}, "weight_map": {name: _part(name) for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _part(name: str) -> str:
    """The file of a tensor: one per layer, one for the rest."""
    pieces = name.split(".")
    return f"model-{pieces[2] if pieces[1] == 'layers' else 'rest'}.safetensors"


def _config(shape: Architecture, path: Path) -> dict[str, object]:
    return {
        "architectures": [_CLASSES[shape.family]],
        "model_type": shape.family,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": _theta(shape, path),
        "tie_word_embeddings": shape.tied,
        "eos_token_id": list(shape.end_tokens),
        "torch_dtype": "float32",
    }


def _theta(shape: Architecture, path: Path) -> float:
    """The base of plain rotary frequencies. Raises ValueError if they are scaled."""
    if len(shape.inverse_frequencies) < 2:
        return 10_000.0
    theta = float(round(shape.inverse_frequencies[1] ** (-shape.head_dim / 2), 3))
    plain = inverse_frequencies(theta, shape.head_dim)
    if any(abs(a - b) > 1e-6 * b for a, b in zip(shape.inverse_frequencies, plain, strict=True)):
        raise ValueError(
            f"{path}: scaled rotary frequencies: give vLLM the model's Hugging Face folder instead"
        )
    return theta


def main() -> int:
    parser = argparse.ArgumentParser(prog="runtime.engine.vllm.convert", description=__doc__)
    parser.add_argument("path", type=Path, help="a GGUF file")
    parser.add_argument("--cache-dir", type=Path, help="where to keep the folder")
    options = parser.parse_args()
    try:
        print(converted(options.path, options.cache_dir, _show))
    except (ValueError, OSError) as error:
        print(f"convert: {error}", file=sys.stderr)
        return 2
    return 0


def _show(done: int, total: int) -> None:
    print(f"\rconverting: {done} of {total} tensors", end="\n" if done == total else "", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
