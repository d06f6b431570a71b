"""Words and stamps prove what came."""

import os
from collections.abc import Iterator

import pytest

from runtime.kv_link.ledger import Ledger, ledger_bytes, signal
from runtime.kv_link.memory import SharedMemory


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    made = Ledger.create(layers=3, blocks=10)
    yield made
    made.close()


def test_a_signal_holds_epoch_and_puts() -> None:
    assert signal(5, 7) == 0x0000_0005_0000_0007
    assert signal(2**32 - 1, 1) < 2**64


def test_words_start_at_zero_and_keep_what_was_posted(ledger: Ledger) -> None:
    ledger.post(9, signal(2**32 - 1, 3))
    assert (ledger.word(8), ledger.word(9), ledger.word(10)) == (0, signal(2**32 - 1, 3), 0)


def test_stamps_count_every_block_of_every_layer(ledger: Ledger) -> None:
    blocks = [2, 3, 4, 8]
    assert ledger.missing(blocks, epoch=6) == 12
    for layer in range(3):
        ledger.stamp(layer, 2, 3, 6)
        ledger.stamp(layer, 8, 1, 6)
    assert ledger.missing(blocks, epoch=6) == 0
    assert ledger.missing([*blocks, 5], epoch=6) == 3
    assert ledger.missing([1], epoch=6) == 3


def test_a_stamp_of_another_epoch_is_no_proof(ledger: Ledger) -> None:
    for layer in range(3):
        ledger.stamp(layer, 0, 10, 6)
    ledger.stamp(1, 4, 1, 5)
    assert ledger.missing(range(10), epoch=6) == 1
    assert ledger.is_stamped(1, 3, 6)
    assert not ledger.is_stamped(1, 4, 6)
    assert not ledger.is_stamped(1, 4, 7)


def test_stamps_do_not_touch_their_neighbours(ledger: Ledger) -> None:
    ledger.stamp(1, 0, 10, 6)
    assert ledger.missing(range(10), epoch=6) == 20
    assert [ledger.is_stamped(layer, block, 6) for layer, block in ((0, 9), (1, 0), (1, 9), (2, 0))] == [
        False, True, True, False,
    ]  # fmt: skip


def test_a_peer_sees_the_same_ledger(ledger: Ledger) -> None:
    size = ledger_bytes(layers=3, blocks=10)
    peer = Ledger(SharedMemory.received(os.dup(ledger.memory.fd), size), layers=3, blocks=10)
    peer.post(1, 42)
    peer.stamp(2, 9, 1, 77)
    assert ledger.word(1) == 42
    assert ledger.is_stamped(2, 9, 77)
    peer.close()
