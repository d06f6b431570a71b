"""`python -m runtime.fetch REPOSITORY --to FOLDER`: bring a model from the Hugging Face hub, before a program
starts that reads it.

All files are of the one commit that the revision names at the beginning. A machine needs the weights as
safetensors, a router only what the tokenizer is made of. What is there already is not fetched again, so a
call that was interrupted goes on. Exit status 2: the hub does not give it; the message says what to change.
"""

import argparse
import os
import sys
from pathlib import Path

from runtime import log

TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"),
    *("generation_config.json", "chat_template.jinja", "chat_template.json"),
)
"""All that `runtime.tokenizer` reads."""
MODEL = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
LEFT_OUT = ("*/*", "consolidated*.safetensors")
"""Other forms of the same weights."""
_ADVICE = {
    401: "the repository is private or gated, or does not exist: set model.source.hub.tokenSecret",
    403: "the token may not read it: accept the model's terms, or take another token",
    404: "no such repository or revision: correct model.source.hub",
}
logger = log.logger("fetch")


def main() -> int:
    parser = argparse.ArgumentParser(prog="runtime.fetch", description=__doc__)
    parser.add_argument("repository", help="such as meta-llama/Llama-3.1-8B-Instruct")
    parser.add_argument("--revision", default="main", help="branch, tag or commit")
    parser.add_argument("--to", type=Path, required=True, help="the folder for the files")
    parser.add_argument("--tokenizer", action="store_true", help="only what a router needs")
    options = parser.parse_args()
    log.set_up(program="fetch")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when the library is imported
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        fetch(options.repository, options.revision, options.to, tokenizer=options.tokenizer)
    except Exception as error:  # the library's errors have no common base
        print(f"fetch: {options.repository}@{options.revision}: {_sentence(error)}", file=sys.stderr)
        return 2
    return 0


def fetch(repository: str, revision: str, folder: Path, *, tokenizer: bool) -> str:
    """Fetch into the folder and say which commit it is. The token is the environment's HF_TOKEN.

    Raises ValueError if the repository lacks what is needed, and whatever the hub's library raises."""
    from huggingface_hub import HfApi, snapshot_download

    commit = HfApi().model_info(repository, revision=revision).sha
    if commit is None:
        raise ValueError("the hub names no commit")
    logger.info("fetching", repository=repository, revision=revision, commit=commit)
    snapshot_download(
        repository,
        revision=commit,
        local_dir=folder,
        allow_patterns=list(TOKENIZER if tokenizer else MODEL),
        ignore_patterns=list(LEFT_OUT),
    )
    _check(folder, tokenizer=tokenizer)
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    logger.info("fetched", repository=repository, commit=commit, bytes=size)
    return commit


def _check(folder: Path, *, tokenizer: bool) -> None:
    if tokenizer and not (folder / "tokenizer.json").is_file():
        raise ValueError("there is no tokenizer.json in it; export the fast tokenizer of the model")
    if not tokenizer and not any(folder.glob("*.safetensors")):
        raise ValueError("there are no safetensors in it; take a repository that has them")


def _sentence(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in _ADVICE:
        return _ADVICE[status]
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
