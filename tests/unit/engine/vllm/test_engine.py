"""The engine over a scripted core: what it asks of vLLM, and what it makes of the answers."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from runtime.engine import EngineInfo, Failed, Reserved, Sampled, Work
from runtime.engine.vllm.arguments import Switches
from runtime.engine.vllm.asks import Answer, Ask
from runtime.engine.vllm.bridge import Bridge, Scheduled
from runtime.engine.vllm.engine import VllmEngine
from runtime.kv_link.layout import Layout
from runtime.wire import FINISHED, Sampling, Token

LAYOUT = Layout("m", "", "f", "float32", 1, 1, 8, 4, 256, 33)
INFO = EngineInfo("m", context_tokens=100, vocabulary=50, end_tokens=frozenset({2}), layout=LAYOUT)
GREEDY = Sampling(10, 1, temperature=0)


@dataclass
class ScriptedCore:
    """Answers with what the test queued; calls the hooks that the test names."""

    bridge: Bridge
    asks: list[Ask] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    first: dict[str, tuple[str, int]] = field(default_factory=dict)
    script: list[tuple[list[Answer], bool]] = field(default_factory=list)
    hooks: list[Callable[[], object]] = field(default_factory=list)
    closed: bool = False

    def add(self, ask: Ask) -> None:
        self.asks.append(ask)

    def abort(self, id: str) -> None:
        self.aborted.append(id)
        self.bridge.finished(id)

    def step(self) -> tuple[list[Answer], bool]:
        for hook in self.hooks:
            hook()
        self.hooks.clear()
        return self.script.pop(0) if self.script else ([], False)

    def free_blocks(self) -> int:
        return 30

    def hand_over(self, id: str, first: int) -> None:
        self.first[id] = ("handed over", first)

    def force(self, id: str, first: int) -> None:
        self.first[id] = ("forced", first)

    def close(self) -> None:
        self.closed = True


class Put:
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def begin(self, batch_tokens: int) -> None: ...
    def layer(self, layer: int, first: int, blocks: object) -> None: ...

    def seal(self, first_token: Token) -> None:
        self.calls.append(("seal", first_token.id))

    def abort(self, reason: str) -> None:
        self.calls.append(("abort", reason))


class Loads:
    def __init__(self) -> None:
        self.blocks: list[tuple[int, ...]] = []

    def load(self, blocks: tuple[int, ...]) -> None:
        self.blocks.append(blocks)


class Made:
    def __init__(self, switches: Switches | None = None) -> None:
        self.bridge = Bridge()
        self.bridge.layers, self.bridge.block_tokens = 1, 4
        self.core = ScriptedCore(self.bridge)
        self.loads = Loads()
        self.engine = VllmEngine(
            self.core, self.bridge, info=INFO, loader=self.loads, switches=switches or Switches()
        )

    def reserved(self, id: str, prompt: list[int], sampling: Sampling = GREEDY) -> None:
        """A token leg whose blocks are set aside."""
        self.engine.submit(Work(id, "token", prompt, sampling))
        self.core.hooks.append(lambda: self.bridge.allocated(id, (5, 6), len(prompt)))
        assert self.engine.step() == [Reserved(id, (5, 6))]


@pytest.fixture
def made() -> Made:
    return Made()


class TestAsks:
    def test_a_whole_request(self, made: Made) -> None:
        made.engine.submit(Work("w", "whole", [3, 4], Sampling(10, 1, stop_token_ids=(9,)), [7]))
        [ask] = made.core.asks
        assert (ask.tokens, ask.prior, ask.max_tokens) == ([3, 4, 7], 1, 9)
        assert ask.stops == {2, 9}
        assert not ask.private

    def test_a_prompt_asks_for_one_token(self, made: Made) -> None:
        made.engine.submit(Work("p", "prompt", [3, 4], GREEDY, put=Put()))
        [ask] = made.core.asks
        assert (ask.tokens, ask.prior, ask.max_tokens) == ([3, 4], 0, 1)

    def test_a_token_leg_leaves_room_for_the_first_token(self, made: Made) -> None:
        made.engine.submit(Work("t", "token", [3, 4], GREEDY, [7]))
        [ask] = made.core.asks
        assert ask.tokens[:3] == [3, 4, 7]
        assert (len(ask.tokens), ask.prior, ask.max_tokens) == (4, 2, 8)
        assert ask.private  # blocks that a peer writes must not be shared
        assert made.bridge.external_tokens("t", 0) == 3

    def test_ignoring_the_end_keeps_stop_ids(self, made: Made) -> None:
        sampling = Sampling(5, 1, ignore_eos=True, stop_token_ids=(9,))
        made.engine.submit(Work("w", "whole", [3], sampling))
        assert made.core.asks[0].stops == {9}


class TestPrompts:
    def sample(
        self, made: Made, token: int, sampling: Sampling = GREEDY, prompt: int = 2
    ) -> tuple[Put, Sampled]:
        put = Put()
        made.engine.submit(Work("p", "prompt", [3] * prompt, sampling, put=put))
        made.core.script.append(([Answer("p", (Token(token),), "length")], True))
        [news] = made.engine.step()
        assert isinstance(news, Sampled)
        return put, news

    def test_hands_off_its_first_token(self, made: Made) -> None:
        put, news = self.sample(made, 11)
        assert news == Sampled("p", (Token(11),), "handoff")
        assert put.calls == [("seal", 11)]

    @pytest.mark.parametrize(
        ("token", "sampling", "prompt", "end"),
        [
            (2, GREEDY, 2, "stop"),
            (9, Sampling(10, 1, stop_token_ids=(9,)), 2, "stop"),
            (11, Sampling(1, 1), 2, "length"),
            (11, GREEDY, 99, "length"),
        ],
    )
    def test_ends_where_the_first_token_is_the_last(
        self, made: Made, token: int, sampling: Sampling, prompt: int, end: str
    ) -> None:
        put, news = self.sample(made, token, sampling, prompt)
        assert news.end == end
        assert put.calls == [("abort", FINISHED)]

    def test_a_failed_put_is_told(self, made: Made) -> None:
        put = Put()
        made.engine.submit(Work("p", "prompt", [3, 4], GREEDY, put=put))
        made.core.hooks.append(lambda: made.bridge.failures.update(p="no link"))
        made.core.script.append(([Answer("p", (Token(11),), "length")], True))
        assert made.engine.step() == [Failed("p", "engine_failure", "no link")]
        assert put.calls == [("abort", "no link")]
        assert "p" in made.core.aborted


class TestTokens:
    def test_goes_on_behind_the_first_token(self, made: Made) -> None:
        made.reserved("t", [3] * 6)
        made.engine.arrived("t", Token(11))
        assert made.core.first == {"t": ("handed over", 11)}
        assert made.loads.blocks == [(5, 6)]
        made.core.script.append(([Answer("t", (Token(12),), None)], True))
        assert made.engine.step() == [Sampled("t", (Token(12),), None)]
        made.core.script.append(([Answer("t", (Token(2),), "stop")], True))
        assert made.engine.step() == [Sampled("t", (Token(2),), "stop")]

    def test_or_repeats_it_unheard(self) -> None:
        made = Made(Switches(recompute_first_token=True))
        made.reserved("t", [3] * 6)
        assert made.core.asks[0].tokens == [3] * 6
        assert made.core.asks[0].max_tokens == 10
        made.engine.arrived("t", Token(11))
        assert made.core.first == {"t": ("forced", 11)}
        made.core.script += [
            ([Answer("t", (Token(11),), None)], True),
            ([Answer("t", (Token(12),), None)], True),
        ]
        assert made.engine.step() == []
        assert made.engine.step() == [Sampled("t", (Token(12),), None)]

    def test_a_first_token_that_was_the_last_ends_it(self, made: Made) -> None:
        made.reserved("t", [3] * 6)
        made.engine.arrived("t", Token(2))
        assert made.engine.step() == [Sampled("t", (), "stop")]
        assert made.core.aborted == ["t"]

    def test_an_arrival_for_nobody_is_ignored(self, made: Made) -> None:
        made.engine.arrived("t", Token(2))
        made.reserved("t", [3] * 6)
        made.engine.cancel("t")
        made.engine.arrived("t", Token(11))
        assert made.core.first == {}


class TestBusy:
    def test_rests_until_somebody_calls(self, made: Made) -> None:
        assert not made.engine.busy()
        made.reserved("t", [3] * 6)
        assert made.engine.busy()  # it has told news: there may be more
        assert made.engine.step() == []
        assert not made.engine.busy()
        made.engine.arrived("t", Token(11))
        assert made.engine.busy()

    @pytest.mark.parametrize("call", ["fenced", "drained"])
    def test_freed_blocks_stir_it(self, made: Made, call: str) -> None:
        getattr(made.engine, call)("anybody")
        assert made.engine.busy()

    def test_stays_busy_while_it_computes(self, made: Made) -> None:
        made.engine.submit(Work("w", "whole", [3], GREEDY))
        made.core.script.append(([], True))
        made.engine.step()
        assert made.engine.busy()
        made.engine.step()
        assert not made.engine.busy()


def test_vllm_giving_up_is_a_failure(made: Made) -> None:
    made.engine.submit(Work("w", "whole", [3], GREEDY))
    made.core.script.append(([Answer("w", (), "error")], True))
    [news] = made.engine.step()
    assert isinstance(news, Failed)
    assert news.code == "engine_failure"


def test_answers_to_a_cancelled_request_are_dropped(made: Made) -> None:
    made.engine.submit(Work("w", "whole", [3], GREEDY))
    made.engine.cancel("w")
    made.core.script.append(([Answer("w", (Token(5),), None)], True))
    assert made.engine.step() == []
    assert made.engine.jobs == frozenset()


def test_load_counts_what_waits_and_what_runs(made: Made) -> None:
    made.engine.submit(Work("a", "whole", [3] * 9, GREEDY))
    made.engine.submit(Work("b", "prompt", [3] * 5, GREEDY, put=Put()))
    made.reserved("t", [3] * 6)
    load = made.engine.load()
    assert (load.prompt_tokens_waiting, load.sequences_waiting, load.sequences_running) == (14, 2, 0)
    assert (load.kv_blocks, load.kv_blocks_used, load.kv_blocks_quarantined) == (32, 2, 0)
    made.bridge.plan([Scheduled("a", 0, 9, [1, 2, 3], fresh=True)])
    made.engine.cancel("t")
    load = made.engine.load()
    assert (load.prompt_tokens_waiting, load.sequences_waiting, load.sequences_running) == (5, 1, 1)
    assert load.kv_blocks_quarantined == 2


def test_closing_lets_vllm_go(made: Made) -> None:
    made.engine.close()
    assert made.core.closed
