"""A prompt's way out: what the engine calls `LayerPut`, for one ticket.

Everything here runs on the engine's thread and returns at once; the sender's thread moves the bytes.
"""

import time
from collections.abc import Callable, Sequence

from runtime.kv_link.layout import Layout
from runtime.kv_link.messages import Armed, Sealed
from runtime.kv_link.sender import Item, Parcel, Sender
from runtime.policy.transfer import Mode, choose
from runtime.wire import Token


class Put:
    """Layers of one prompt, offered by the engine, on their way to the blocks of one ticket.

    stopped: told, on any thread, that nothing more will come and why; the flag says whether the machine
    knows already."""

    def __init__(
        self,
        ticket: Armed,
        sender: Sender,
        layout: Layout,
        *,
        switch_tokens: Callable[[], int],
        stopped: Callable[["Put", str, bool], None],
    ) -> None:
        self.parcel = Parcel(ticket)
        self.sender = sender
        self.batch_tokens = 0
        self.mode: Mode = "serialized"
        self.computed = 0.0
        self._layout = layout
        self._switch_tokens = switch_tokens
        self._stopped = stopped
        self._held: list[Item] = []
        self._cells = 0
        self._over = False
        self._first = Token(0)

    @property
    def transfer(self) -> str:
        return self.parcel.ticket.transfer

    def begin(self, batch_tokens: int) -> None:
        """Choose how the KV of a batch of so many prompt tokens travels."""
        self.batch_tokens = batch_tokens
        self.mode = choose(batch_tokens, self._switch_tokens())

    def layer(self, layer: int, first: int, blocks: Sequence[int]) -> None:
        """Logical blocks from `first` on are filled for this layer and lie in `blocks`."""
        self.computed = time.monotonic()
        if self._over or self.parcel.stopped:
            self._held.clear()
            return
        if problem := self._misfit(layer, first, blocks):
            self._give_up(problem, machine_knows=False)
            return
        self._cells += len(blocks)
        item = Item(layer, first, tuple(blocks))
        if self.mode == "serialized":
            self._held.append(item)
        else:
            self.sender.offer(self.parcel, [item])

    def seal(self, first_token: Token) -> None:
        """Everything was offered; signal the token machine once it is put."""
        if self._over or self.parcel.stopped:
            return
        if self._cells != self._expected:
            reason = f"the engine offered {self._cells} of {self._expected} blocks"
            self._give_up(reason, machine_knows=False)
            return
        self._over = True
        self._first = first_token
        self.sender.offer(self.parcel, self._held)
        self.sender.seal(self.parcel)
        self._held = []

    def abort(self, reason: str) -> None:
        """Nothing more comes."""
        if not self._over:
            self._give_up(reason, machine_knows=True)

    def stop(self, reason: str) -> None:
        """The machine gave up, on the loop's thread."""
        self._stopped(self, reason, True)

    def claim(self) -> Sealed:
        """What was done, once the sender has sealed."""
        parcel = self.parcel
        return Sealed(
            epoch=parcel.ticket.epoch,
            first=self._first,
            mode=self.mode,
            puts=parcel.puts,
            bytes=parcel.bytes,
            started=parcel.started,
            ended=parcel.ended,
            computed=self.computed,
        )

    @property
    def _expected(self) -> int:
        return self._layout.layers * len(self.parcel.ticket.blocks)

    def _misfit(self, layer: int, first: int, blocks: Sequence[int]) -> str | None:
        if not 0 <= layer < self._layout.layers:
            return f"the engine offered layer {layer} of {self._layout.layers}"
        if first < 0 or first + len(blocks) > len(self.parcel.ticket.blocks):
            return f"the engine offered more than the ticket's {len(self.parcel.ticket.blocks)} blocks"
        if not all(0 <= block < self._layout.blocks for block in blocks):
            return f"the engine offered a block outside its pool of {self._layout.blocks}"
        if self._cells + len(blocks) > self._expected:
            return "the engine offered blocks twice"
        return None

    def _give_up(self, reason: str, *, machine_knows: bool) -> None:
        self._over = True
        self._held = []
        self._stopped(self, reason, machine_knows)
