"""Who runs when, how answers end, and that everything ends."""

from pathlib import Path
from typing import Any

import pytest

from reference_engines import CopyingPut, Rig, rig, work
from runtime.engine import Reserved, Sampled
from runtime.engine.reference.architecture import UnusableModel
from runtime.errors import InvalidRequest
from runtime.wire import Token

LONG = range(3, 103)


@pytest.fixture
def machine(llama: Path, cache_dir: Path) -> Rig:
    return rig(llama, cache_dir)


def said(machine: Rig) -> list[str]:
    """The ids that a step gave tokens to."""
    return [news.id for news in machine.step() if isinstance(news, Sampled) and news.tokens]


@pytest.mark.fault("STREAM-2")
@pytest.mark.parametrize("count", [1, 2, 17])
def test_exactly_max_tokens(machine: Rig, count: int) -> None:
    machine.submit(work(max_tokens=count)).run()
    assert len(machine.tokens("a")) == count
    assert machine.end("a") == "length"


def test_the_end_token_is_told_and_ends(machine: Rig) -> None:
    machine.submit(work(ignore_eos=False, logit_bias={2: 1000.0})).run()
    assert (machine.tokens("a"), machine.end("a")) == ([2], "stop")


def test_min_tokens_puts_the_end_off(machine: Rig) -> None:
    how: dict[str, Any] = {"ignore_eos": False, "logit_bias": {2: 1000.0, 7: 900.0}, "stop_token_ids": (7,)}
    machine.submit(work(min_tokens=3, **how)).run()
    assert len(machine.tokens("a")) == 4
    assert not {2, 7} & set(machine.tokens("a")[:3])
    assert machine.end("a") == "stop"


def test_an_ignored_end_token_goes_on(machine: Rig) -> None:
    machine.submit(work(max_tokens=3, logit_bias={2: 1000.0})).run()
    assert (machine.tokens("a"), machine.end("a")) == ([2, 2, 2], "length")


def test_stop_tokens_end_even_so(machine: Rig) -> None:
    machine.submit(work(stop_token_ids=(9,), logit_bias={9: 1000.0})).run()
    assert (machine.tokens("a"), machine.end("a")) == ([9], "stop")


def test_stop_beats_length(machine: Rig) -> None:
    machine.submit(work(max_tokens=1, stop_token_ids=(9,), logit_bias={9: 1000.0})).run()
    assert machine.end("a") == "stop"


def test_generated_tokens_count_as_output(machine: Rig) -> None:
    machine.submit(work(generated=[5, 6], max_tokens=4)).run()
    assert len(machine.tokens("a")) == 2


@pytest.mark.parametrize("context", [{"context_tokens": 30}, {"blocks": 2, "block_tokens": 15}])
def test_a_full_context_is_length(llama: Path, cache_dir: Path, context: dict[str, int]) -> None:
    machine = rig(llama, cache_dir, **context)
    assert machine.engine.info.context_tokens == 30
    machine.submit(work(prompt=range(3, 23), max_tokens=99)).run()
    assert len(machine.tokens("a")) == 10
    assert machine.end("a") == "length"
    assert machine.used == 0


def test_more_context_than_the_model_has_is_refused(llama: Path, cache_dir: Path) -> None:
    with pytest.raises(UnusableModel, match="100000 tokens is asked for, and the model has 8192"):
        rig(llama, cache_dir, context_tokens=100_000)


def test_a_small_prompt_machine_does_not_end_what_a_token_machine_can_go_on_with(
    llama: Path, cache_dir: Path
) -> None:
    machine = rig(llama, cache_dir, blocks=2)
    machine.submit(work(prompt=range(3, 35), phase="prompt", put=CopyingPut(machine.pool))).run()
    assert machine.end("a") == "handoff"


def test_prompts_share_a_batch_and_tokens_join(machine: Rig) -> None:
    machine.submit(work("a"), work("b"))
    assert said(machine) == ["a", "b"]
    machine.submit(work("c"))
    assert sorted(said(machine)) == ["a", "b", "c"]


def test_a_prompt_over_the_budget_goes_alone(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, budget=32)
    machine.submit(work("long", range(3, 73)), work("short"))
    assert [said(machine) for _ in range(4)] == [[], [], ["long"], ["short", "long"]]


def test_prompts_first_then_tokens_as_the_budget_allows(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, budget=21)
    machine.submit(work("a"))
    machine.step()
    machine.submit(work("b"))
    machine.step()
    machine.submit(work("c"))
    assert said(machine) == ["c", "a"]


def test_prompts_do_not_starve_tokens(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, budget=20)
    machine.submit(work("old", max_tokens=3))
    machine.submit(*(work(f"w{at}", max_tokens=1) for at in range(20)))
    steps = 0
    while machine.end("old") is None:
        machine.step()
        steps += 1
    assert steps <= 11
    assert machine.engine.busy()


@pytest.mark.fault("STREAM-1")
def test_cancelled_prompts_cost_nothing(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, budget=10)
    machine.submit(*(work(f"long{at}", LONG) for at in range(10)), work("short", range(3, 8)))
    machine.step()
    for at in range(10):
        machine.engine.cancel(f"long{at}")
    assert said(machine) == ["short"]


def test_reservations_are_served_in_order(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, blocks=7)
    lengths = {"a": 60, "b": 60, "c": 10}
    machine.submit(*(work(id, range(3, 3 + length), "token") for id, length in lengths.items()))
    machine.run()
    assert [news.id for news in machine.news if isinstance(news, Reserved)] == ["a"]
    assert machine.engine.load().sequences_waiting == 2
    assert not machine.engine.busy()
    machine.engine.cancel("a")
    assert not machine.engine.busy()
    machine.engine.fenced("a")
    machine.run()
    assert [news.id for news in machine.news if isinstance(news, Reserved)] == ["a", "b", "c"]


def test_a_prompt_waits_in_line_with_reservations(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, blocks=8)
    machine.submit(work("held", LONG, "token"), work("whole", range(3, 60)))
    machine.submit(work("late", range(3, 8), "token"))
    machine.run()
    assert machine.reserved("late") is None  # it would take room that an older one waits for
    machine.engine.cancel("held")
    machine.engine.fenced("held")
    machine.run()
    assert machine.end("whole") == "length"
    assert machine.reserved("late") is not None


def test_reservations_leave_prompts_their_share(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, blocks=12, reservable=0.5)
    machine.submit(*(work(id, range(3, 50), "token") for id in "abc"), work("whole", range(3, 60)))
    machine.run()
    assert machine.reserved("b")
    assert machine.reserved("c") is None
    assert machine.end("whole") == "length"


def test_one_reservation_is_always_possible(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, blocks=12, reservable=0.1)
    assert machine.submit(work(prompt=LONG, phase="token")).run().reserved("a")


def test_more_than_fits_at_once_all_end(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, blocks=6, sequences=5)
    machine.submit(*(work(f"w{at}", range(3, 20 + at), max_tokens=20 + at) for at in range(12))).run()
    assert [len(machine.tokens(f"w{at}")) for at in range(12)] == [20 + at for at in range(12)]
    assert machine.used == 0


def test_the_youngest_gives_way(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, blocks=4)
    machine.submit(work("old", range(3, 18), max_tokens=40), work("young", range(3, 18), max_tokens=30))
    machine.run()
    ends = [news.id for news in machine.news if isinstance(news, Sampled) and news.end]
    assert ends == ["old", "young"]


def test_arrived_kv_may_be_given_up_and_computed_here(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, blocks=5)
    machine.submit(work("old", range(3, 18), max_tokens=40))
    machine.step()
    machine.submit(work("young", range(3, 34), "token", max_tokens=30)).step()
    machine.engine.arrived("young", Token(5))
    machine.pool.memory[:] = bytes(len(machine.pool.memory))
    machine.run()
    assert len(machine.tokens("young")) == 29
    assert machine.used == 0


def test_a_newcomer_leaves_room_for_those_who_run_to_grow(llama: Path, cache_dir: Path) -> None:
    """Or the two would drive each other out in turns."""
    machine = rig(llama, cache_dir, blocks=3)
    machine.submit(work("old", range(3, 13)))
    machine.step()
    machine.submit(work("new", range(3, 35), "token"), work("newer", range(3, 35)))
    assert said(machine) == ["old"]
    assert machine.reserved("new") is None
    machine.run()
    assert machine.reserved("new") is not None


def test_at_most_so_many_sequences_at_once(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, sequences=3)
    machine.submit(*(work(f"w{at}") for at in range(8)))
    assert max(len(said(machine)) for _ in range(20)) == 3
    machine.run()
    assert [len(machine.tokens(f"w{at}")) for at in range(8)] == [8] * 8


def test_the_load_is_counted(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, blocks=20, budget=32)
    machine.submit(work("long", LONG), work("next"), work("held", phase="token"))
    machine.step()
    load = machine.engine.load()
    assert load.prompt_tokens_waiting == 100 - 32 + 20
    assert load.sequences_waiting == 1
    assert load.sequences_running == 1
    assert (load.kv_blocks, load.kv_blocks_used, load.kv_blocks_quarantined) == (20, 7 + 2, 0)


def test_nothing_to_do_is_not_busy(machine: Rig) -> None:
    assert not machine.engine.busy()
    assert machine.engine.step() == []
    machine.engine.cancel("nobody")
    machine.engine.fenced("nobody")
    machine.engine.drained("nobody")
    machine.engine.arrived("nobody", Token(1))
    assert not machine.engine.busy()


def test_an_id_is_taken_until_its_blocks_are_free(machine: Rig) -> None:
    machine.submit(work(phase="token")).run()
    with pytest.raises(InvalidRequest, match="in use"):
        machine.submit(work())
    machine.engine.cancel("a")
    with pytest.raises(InvalidRequest, match="in use"):
        machine.submit(work())
    machine.engine.fenced("a")
    machine.submit(work()).run()
    assert machine.end("a") == "length"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": range(3, 51)}, "48 tokens: at most 47"),
        ({"prompt": range(3, 45), "generated": [5] * 6}, "48 tokens: at most 47"),
        ({"prompt": [384]}, "token 384: the model's tokens are 0 to 383"),
        ({"prompt": [-1]}, "token -1"),
        ({"generated": [384]}, "token 384"),
        ({"logit_bias": {384: 1.0}}, "logit_bias 384"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids -1"),
        ({"max_tokens": 0}, "none is left"),
        ({"max_tokens": 2, "generated": [5, 6]}, "none is left"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 1.1}, "min_p"),
    ],
)
def test_what_can_never_run_is_refused(
    llama: Path, cache_dir: Path, how: dict[str, Any], message: str
) -> None:
    machine = rig(llama, cache_dir, blocks=3)
    with pytest.raises(InvalidRequest, match=message):
        machine.submit(work(**how))
    assert not machine.engine.busy()
    machine.submit(work(prompt=range(3, 50), max_tokens=99)).run()  # what just fits, runs
    assert machine.end("a") == "length"


def test_closing_lets_go_of_the_memory(machine: Rig) -> None:
    machine.submit(work()).run()
    machine.engine.close()
    machine.pool.memory.extend(b"x")  # impossible while anyone holds a view
