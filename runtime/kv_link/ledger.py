"""What writers leave behind their data: a signal per ticket and a stamp per block of a layer.

A slot's 64-bit word is the paper's semaphore: `epoch << 32 | puts`, written behind the last put. A stamp is
the epoch of the ticket that last filled this block of this layer. Together they prove, in the token
machine's own memory, that every block of every layer came, for this ticket, and nothing came twice: so many
blocks were put in all, and each one was.
"""

from array import array
from collections.abc import Sequence
from operator import itemgetter

from runtime.kv_link.memory import SharedMemory

SLOTS = 4096
_WORD = 8
_STAMP = 4


def ledger_bytes(*, layers: int, blocks: int, slots: int = SLOTS) -> int:
    """Size of a ledger's memory."""
    return slots * _WORD + layers * blocks * _STAMP


def signal(epoch: int, puts: int) -> int:
    """The value of a slot's word once `puts` puts of the ticket `epoch` are done."""
    return epoch << 32 | puts


class Ledger:
    """Slot words, then stamps, over `ledger_bytes` of memory."""

    def __init__(self, memory: SharedMemory, *, layers: int, blocks: int, slots: int = SLOTS) -> None:
        self.memory = memory
        self._layers, self._blocks = layers, blocks
        self._words = memory.view[: slots * _WORD].cast("Q")
        self._stamps = memory.view[slots * _WORD :].cast("I")

    @classmethod
    def create(cls, *, layers: int, blocks: int) -> "Ledger":
        memory = SharedMemory.create("splitwise-ledger", ledger_bytes(layers=layers, blocks=blocks))
        return cls(memory, layers=layers, blocks=blocks)

    def word(self, slot: int) -> int:
        return self._words[slot]

    def post(self, slot: int, value: int) -> None:
        self._words[slot] = value

    def stamp(self, layer: int, first: int, count: int, epoch: int) -> None:
        """`count` neighbouring blocks of a layer were filled for a ticket."""
        start = layer * self._blocks + first
        self._stamps[start : start + count] = memoryview(array("I", [epoch]) * count)

    def is_stamped(self, layer: int, block: int, epoch: int) -> bool:
        return self._stamps[layer * self._blocks + block] == epoch

    def missing(self, blocks: Sequence[int], epoch: int) -> int:
        """How many (layer, block) of these blocks were not filled for this ticket."""
        if not blocks:
            return 0
        pick = itemgetter(*blocks, blocks[0])  # one more, so that it always returns a tuple
        expected = (epoch,) * (len(blocks) + 1)
        missing = 0
        for layer in range(self._layers):
            stamps = pick(self._stamps[layer * self._blocks : (layer + 1) * self._blocks])
            if stamps != expected:
                missing += sum(stamp != epoch for stamp in stamps[:-1])
        return missing

    def close(self) -> None:
        self._words.release()
        self._stamps.release()
        self.memory.close()
