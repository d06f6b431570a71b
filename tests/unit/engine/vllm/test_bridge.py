"""Who may touch which blocks, told through the bridge by hooks and by the engine in any order."""

import pytest

from runtime.engine import Reserved
from runtime.engine.vllm.bridge import Bridge, Reports, Scheduled
from runtime.wire import Token


class Put:
    """Remembers what it is told; breaks in the call named `breaks`."""

    def __init__(self, breaks: str = "") -> None:
        self.calls: list[tuple[object, ...]] = []
        self.breaks = breaks

    def begin(self, batch_tokens: int) -> None:
        self._note("begin", batch_tokens)

    def layer(self, layer: int, first: int, blocks: object) -> None:
        self._note("layer", layer, first, blocks)

    def seal(self, first_token: Token) -> None:
        self._note("seal")

    def abort(self, reason: str) -> None:
        self._note("abort")

    def _note(self, *call: object) -> None:
        if call[0] == self.breaks:
            raise RuntimeError("broken link")
        self.calls.append(call)


class AtOnce:
    """A saver without a GPU."""

    def save(self, layer: int, blocks: object, then: object) -> None:
        then()  # type: ignore[operator]

    def flush(self) -> None: ...


@pytest.fixture
def bridge() -> Bridge:
    made = Bridge()
    made.layers, made.block_tokens, made.saver = 2, 4, AtOnce()
    return made


def new(id: str, computed: int, count: int, blocks: list[int]) -> Scheduled:
    return Scheduled(id, computed, count, blocks, fresh=True)


def more(id: str, computed: int, count: int, blocks: list[int]) -> Scheduled:
    return Scheduled(id, computed, count, blocks, fresh=False)


def compute(bridge: Bridge, *batch: Scheduled) -> None:
    """One step of vLLM."""
    bridge.plan(batch)
    for layer in range(bridge.layers):
        bridge.saved(layer)
    bridge.flush()
    bridge.check_saved()


NOTHING = Reports(set(), set())


class TestPrompts:
    def test_a_prompt_in_one_piece(self, bridge: Bridge) -> None:
        put = Put()
        bridge.prompt("p", put, 10)
        compute(bridge, new("p", 0, 10, [7, 8, 9]))
        assert put.calls == [("begin", 10), ("layer", 0, 0, (7, 8, 9)), ("layer", 1, 0, (7, 8, 9))]

    def test_a_half_filled_block_waits_for_its_other_half(self, bridge: Bridge) -> None:
        put = Put()
        bridge.prompt("p", put, 10)
        compute(bridge, new("p", 0, 6, [7, 8]))
        compute(bridge, more("p", 6, 1, []))
        compute(bridge, more("p", 7, 3, [9]))
        layers = [call for call in put.calls if call[:2] == ("layer", 1)]
        assert layers == [("layer", 1, 0, (7,)), ("layer", 1, 1, (8, 9))]
        assert [call for call in put.calls if call[0] == "begin"] == [("begin", 6)]

    def test_blocks_from_the_prefix_cache_go_with_the_first_piece(self, bridge: Bridge) -> None:
        put = Put()
        bridge.prompt("p", put, 10)
        compute(bridge, new("p", 8, 2, [1, 2, 3]))
        assert put.calls[0] == ("begin", 10)
        assert put.calls[1] == ("layer", 0, 0, (1, 2, 3))

    def test_a_batch_of_two_tells_both_how_much_it_puts(self, bridge: Bridge) -> None:
        one, two = Put(), Put()
        bridge.prompt("one", one, 4)
        bridge.prompt("two", two, 8)
        compute(bridge, new("one", 0, 4, [1]), new("two", 0, 8, [2, 3]), more("other", 30, 1, []))
        assert one.calls[0] == two.calls[0] == ("begin", 12)

    def test_blocks_are_kept_until_nobody_reads_them(self, bridge: Bridge) -> None:
        bridge.prompt("p", Put(), 4)
        compute(bridge, new("p", 0, 4, [1]))
        assert bridge.finished("p")
        assert bridge.take_reports() == NOTHING
        bridge.drained("p")
        assert bridge.has_reports
        assert bridge.take_reports() == Reports({"p"}, set())
        assert bridge.take_reports() == NOTHING

    def test_a_prompt_that_drained_before_it_ended_keeps_nothing(self, bridge: Bridge) -> None:
        put = Put()
        bridge.prompt("p", put, 8)
        compute(bridge, new("p", 0, 4, [1]))
        bridge.drained("p")
        compute(bridge, more("p", 4, 4, [2]))
        assert ("layer", 0, 1, (2,)) not in put.calls
        assert not bridge.finished("p")
        assert bridge.take_reports() == NOTHING

    def test_a_prompt_that_never_began_keeps_nothing(self, bridge: Bridge) -> None:
        bridge.prompt("p", Put(), 4)
        assert not bridge.finished("p")
        bridge.drained("p")
        assert bridge.take_reports() == NOTHING

    @pytest.mark.parametrize("call", ["begin", "layer"])
    def test_a_broken_put_is_that_prompts_failure_only(self, bridge: Bridge, call: str) -> None:
        broken, fine = Put(breaks=call), Put()
        bridge.prompt("broken", broken, 4)
        bridge.prompt("fine", fine, 4)
        compute(bridge, new("broken", 0, 4, [1]), new("fine", 0, 4, [2]))
        assert bridge.failures == {"broken": "RuntimeError: broken link"}
        assert fine.calls[-1] == ("layer", 1, 0, (2,))

    def test_a_layer_that_vllm_skipped_is_noticed(self, bridge: Bridge) -> None:
        bridge.prompt("p", Put(), 4)
        bridge.plan([new("p", 0, 4, [1])])
        bridge.saved(0)
        bridge.check_saved()
        assert bridge.failures == {"p": "vLLM showed 1 of 2 layers of a prompt"}

    def test_a_prompt_whose_kv_vllm_dropped_is_noticed(self, bridge: Bridge) -> None:
        bridge.prompt("p", Put(), 8)
        compute(bridge, new("p", 0, 4, [1]))
        compute(bridge, new("p", 0, 8, [5, 6]))
        assert "dropped" in bridge.failures["p"]


class TestTokens:
    def reserve(
        self, bridge: Bridge, id: str = "t", tokens: int = 8, blocks: tuple[int, ...] = (1, 2)
    ) -> None:
        bridge.token(id, tokens)
        assert bridge.external_tokens(id, 0) == tokens
        bridge.allocated(id, blocks, tokens)

    def test_a_reservation_is_told_once(self, bridge: Bridge) -> None:
        self.reserve(bridge)
        bridge.allocated("t", (1, 2, 3), 0)
        assert bridge.take_reserved() == [Reserved("t", (1, 2))]
        assert bridge.take_reserved() == []
        assert bridge.external_tokens("t", 0) == 0

    def test_arrival_is_reported(self, bridge: Bridge) -> None:
        self.reserve(bridge)
        assert bridge.arrived("t")
        assert not bridge.arrived("t")
        assert bridge.take_reports() == Reports(set(), {"t"})
        assert not bridge.finished("t")

    def test_an_arrival_without_a_reservation_is_nothing(self, bridge: Bridge) -> None:
        bridge.token("t", 8)
        assert not bridge.arrived("t")
        assert not bridge.arrived("nobody")
        assert bridge.take_reports() == NOTHING

    def test_a_cancelled_reservation_waits_for_its_fence(self, bridge: Bridge) -> None:
        self.reserve(bridge)
        assert bridge.finished("t")
        assert bridge.quarantined == 2
        assert bridge.take_reports() == NOTHING
        assert not bridge.arrived("t")
        bridge.fenced("t")
        assert bridge.take_reports() == Reports(set(), {"t"})
        assert bridge.quarantined == 0

    def test_a_fence_before_the_cancel_counts(self, bridge: Bridge) -> None:
        self.reserve(bridge)
        bridge.fenced("t")
        assert bridge.take_reports() == NOTHING
        assert bridge.finished("t")
        assert bridge.take_reports() == Reports(set(), {"t"})

    def test_a_fence_without_blocks_is_nothing_to_report(self, bridge: Bridge) -> None:
        bridge.token("t", 8)
        bridge.fenced("t")
        assert not bridge.finished("t")
        assert bridge.take_reports() == NOTHING

    def test_a_cancel_between_arrival_and_report(self, bridge: Bridge) -> None:
        self.reserve(bridge)
        bridge.arrived("t")
        bridge.finished("t")
        assert bridge.take_reports() == Reports(set(), {"t"})
        bridge.fenced("t")
        assert bridge.take_reports() == NOTHING

    def test_a_cancel_before_the_reservation_keeps_nothing(self, bridge: Bridge) -> None:
        bridge.token("t", 8)
        assert not bridge.finished("t")
        bridge.fenced("t")
        assert bridge.take_reports() == NOTHING
        assert not bridge.awaits("t")

    def test_reservations_leave_room_but_one_is_always_possible(self, bridge: Bridge) -> None:
        bridge.reservable = 3
        bridge.token("big", 100)
        assert bridge.external_tokens("big", 0) == 100
        self.reserve(bridge, "one")
        bridge.token("two", 8)
        assert bridge.external_tokens("two", 0) is None
        bridge.token("small", 4)
        assert bridge.external_tokens("small", 0) == 4
        bridge.arrived("one")
        assert bridge.external_tokens("two", 0) == 8

    def test_a_failed_hook_ends_every_transfer_in_hand(self, bridge: Bridge) -> None:
        self.reserve(bridge)
        bridge.prompt("p", Put(), 4)
        bridge.fail_transfers("hook: KeyError")
        assert set(bridge.failures) == {"t", "p"}


def test_requests_without_a_peer_are_left_alone(bridge: Bridge) -> None:
    compute(bridge, new("whole", 0, 9, [1, 2, 3]))
    compute(bridge, new("other", 0, 3, [4]))
    assert bridge.running == {"whole", "other"}  # one that sits a batch out is running all the same
    bridge.finished("other")
    assert bridge.external_tokens("whole", 0) == 0
    bridge.allocated("whole", (1,), 0)
    assert not bridge.finished("whole")
    assert bridge.running == set()
    assert bridge.take_reserved() == []
