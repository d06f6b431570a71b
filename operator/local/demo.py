"""`splitwise demo`: answers of machines that split the work, and the proof that they equal one machine's."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import openai
from rich.console import Console

from controlplane.api import SplitwiseDeployment, read
from local.ask import Answer, KvTrace, ask
from local.rundir import RunFailed
from local.serve import Options, refuse_early, running
from local.up import weights_of
from local.wish import Ended, Wish

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"

LETTER = """\
Dear sister, you asked how the harbour runs now that there are two crews, so here is a whole day of it.
The first crew unloads. When a ship comes in at six, they are all on the quay at once: cranes, carts, the
clerk with her list. It is heavy work, and it is over quickly, because everything that a ship carries is there
from the first minute and nobody has to wait for anybody. By half past six the ship is empty, and the crew is
free for the next one. On busy mornings three ships come in together, and then they unload the first, the
second and the third in the order in which they came, for we have found that stopping in the middle of one
ship to begin another only makes everybody late.
The second crew delivers. From the quay each crate goes through the town, one after another, and the next
address is known only when the one before has signed. One man with a cart needs hardly any strength for it,
but he is on his feet until evening. What he does need is room: every order that is still open has its sheet
on the wall of his office, and when the wall is full he cannot take another, however strong he is. So we gave
the strong men to the quay and the big wall to the carts.
In the old days one crew did both. A cart would be halfway up the hill when the bell rang for a ship, and the
man had to run down again, and the customer stood at the door and wondered where he was. On quiet days the
cranes rusted while two men walked through the town. Nobody was lazy, and still everything took longer than it
should.
The only new trouble was the paper. What the first crew knows about a ship, the second must know as well, or
it delivers to the wrong doors. At first a boy ran up with the whole bundle when the ship was empty, and for a
small ship that is still the best way. For a big one we do it differently: each page goes up the hill as soon
as it is written, while the cranes are still busy with the next hold, so that when the last crate is on the
quay only the last page is missing. The man with the cart hardly notices that he ever waited.
And if a cart breaks down? Then we tell the customer nothing, take the list from the quay, and another cart
starts from the beginning of the street, passing quietly by the doors that have signed already.
Come and see it before the winter. Your brother, the harbour master.

Question: who wrote this letter? Answer in one sentence."""

ROUNDS = (
    (("What is the capital of France?", 24),),
    ((LETTER, 36), ("Write one sentence about the sea.", 40)),
)
"""(question, most tokens of its answer); those of a round are asked together, so that they share batches.
The letter is over 512 tokens: its KV-cache goes layer by layer."""


def demo(examples: Path, *, console: Console) -> int:
    """The whole demonstration; the value is the exit status: 1 if an answer differs or was not split.

    Raises RunFailed or InvalidDeployment.
    """
    split, whole = read(examples / "local.yaml"), read(examples / "unsplit.yaml")
    for deployment in (split, whole):
        refuse_early(deployment, Options(port=0))
    weights = weights_of(split, file=examples / "local.yaml", model=None, console=console)
    try:
        return asyncio.run(_demo(split, whole, weights, console))
    except Ended:
        return 130
    except (openai.APIError, ValueError) as error:
        raise RunFailed(f"a question was not answered: {error}") from error


async def _demo(
    split: SplitwiseDeployment, whole: SplitwiseDeployment, weights: Path, console: Console
) -> int:
    wish = Wish()
    with wish.heard():
        console.rule("prompt and token machines", align="left")
        ours = await _answers(split, weights, console, wish)
        console.rule("the same questions to one machine that does both", align="left")
        theirs = await _answers(whole, weights, console, wish)
    found = [*unsplit(ours), *differences(ours, theirs)]
    console.rule("the proof", align="left")
    for problem in found:
        console.print(f"[red]✗[/] {problem}", highlight=False)
    if found:
        return 1
    tokens = sum(len(answer.served.token_ids) for answer in ours)
    equal = f"{len(ours)} answers, {tokens} tokens: text and token ids are the same, split and unsplit"
    console.print(f"[green]✓[/] {equal}\n", highlight=False)
    console.print(_NEXT, highlight=False, markup=False, soft_wrap=True)
    return 0


_NEXT = """\
Next:
  .venv/bin/splitwise up deploy/examples/local.yaml    an OpenAI endpoint, until Ctrl-C
  .venv/bin/splitwise chat                             talk to it, from another terminal
  .venv/bin/splitwise ps                               its machines: kill one in the middle of an answer
  docs/index.md                                        how it works"""


async def _answers(
    deployment: SplitwiseDeployment, weights: Path, console: Console, wish: Wish
) -> list[Answer]:
    async with running(
        deployment, weights=weights, options=Options(port=0), console=console, wish=wish
    ) as run:
        asking = asyncio.create_task(_ask_all(run.endpoint, deployment.spec.model.name, console))
        ended = asyncio.create_task(run.until_ended(wish))
        try:
            await asyncio.wait({asking, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
                raise Ended
            return asking.result()
        finally:
            asking.cancel()
            ended.cancel()
            await asyncio.gather(asking, ended, return_exceptions=True)


async def _ask_all(endpoint: str, model: str, console: Console) -> list[Answer]:
    answers = []
    async with openai.AsyncOpenAI(base_url=f"{endpoint}/v1", api_key="none", max_retries=0) as client:
        for questions in ROUNDS:
            answers += await _ask_together(client, model, questions, console)
    return answers


async def _ask_together(
    client: openai.AsyncOpenAI, model: str, questions: Sequence[tuple[str, int]], console: Console
) -> list[Answer]:
    """Stream the first answer to the console, and print the others once all are there."""

    def hear(text: str) -> None:
        console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    asking = [
        ask(client, model, question, max_tokens=max_tokens, hear=(lambda text: None) if index else hear)
        for index, (question, max_tokens) in enumerate(questions)
    ]
    _pose(questions[0][0], console)
    answers = await asyncio.gather(*asking)
    _close(answers[0], console)
    for (question, _), answer in zip(questions[1:], answers[1:], strict=True):
        _pose(question, console, " [dim](asked at the same time)[/]")
        hear(answer.text)
        _close(answer, console)
    return answers


def _pose(question: str, console: Console, note: str = "") -> None:
    console.print(f"[bold cyan]?[/] {_short(question)}{note}", highlight=False, soft_wrap=True)
    console.print("  ", end="")


def _close(answer: Answer, console: Console) -> None:
    console.print(f"\n  [dim]{facts(answer)}[/]\n", highlight=False, soft_wrap=True)


def _short(question: str) -> str:
    """The question, or its beginning and its end."""
    if len(question) < 100:
        return question
    return f"{question[:10]}… {question.splitlines()[-1]}"


def facts(answer: Answer) -> str:
    """Who served an answer, how its KV-cache travelled, and how long things took: two lines."""
    served, kv = answer.served, answer.served.kv
    tokens = f"{answer.prompt_tokens} prompt tokens, {len(served.token_ids)} output tokens"
    if kv is None:
        how = f"{served.token_machine} alone"
    else:
        how = f"{served.prompt_machine} → {served.token_machine}, {_travel(kv)}"
    tbt = f", TBT {answer.tbt * 1e3:.0f} ms" if answer.tbt is not None else ""
    return f"{how}\n  {tokens}; TTFT {answer.ttft * 1e3:.0f} ms{tbt}"


def _travel(kv: KvTrace) -> str:
    took = f"{kv.seconds * 1e3:.0f} ms"
    how = f"layer by layer behind {took} of compute" if kv.mode == "layerwise" else f"in one piece, {took}"
    seen = (
        f"; there {kv.visible_seconds * 1e3:.0f} ms after the last layer" if kv.visible_seconds >= 0 else ""
    )
    return f"{kv.bytes / 1e6:.1f} MB of KV-cache over {kv.transport} {how}{seen}"


def unsplit(answers: Sequence[Answer]) -> list[str]:
    """Sentences about answers that were not split between two machines."""
    return [
        f"answer {index} was not split: {answer.served.token_machine} did all of it"
        for index, answer in enumerate(answers, 1)
        if not answer.served.split or answer.served.kv is None
    ]


def differences(ours: Sequence[Answer], theirs: Sequence[Answer]) -> list[str]:
    """Sentences about answers that are not the same, text and token ids."""
    found = []
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        if one.text != other.text:
            found.append(f"answer {index}, text: split {one.text!r}, unsplit {other.text!r}")
        if one.served.token_ids != other.served.token_ids:
            found.append(
                f"answer {index}, token ids: split {list(one.served.token_ids)},"
                f" unsplit {list(other.served.token_ids)}"
            )
    return found
