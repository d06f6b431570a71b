"""A machine's KV link: both halves, composed with the machine's own link listener.

Token machine: `arm` a transfer's blocks, then `arrived`, or `transfer_failed` and `fenced`. Prompt machine:
`expect` a transfer, compute once `ticket` hands over the `Put`, and reuse the blocks after `drained`.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from runtime.config import LinkSettings, TransferSettings
from runtime.kv_link.callee import Callee
from runtime.kv_link.context import Context, Counts, KvEvents
from runtime.kv_link.hello import check, greeting
from runtime.kv_link.ledger import Ledger
from runtime.kv_link.messages import PromptMessage, TokenMessage
from runtime.kv_link.pool import Pool
from runtime.kv_link.prompt_side import PromptSide
from runtime.kv_link.token_side import TokenSide
from runtime.kv_link.transport import Faults, Limits, Place, TransportError
from runtime.link import Connection, Handler, Hello, Keyring, LinkError, Pulse, Refused, dial, host_id

__all__ = ["Counts", "KvEvents", "KvLink", "Listening", "TransportError"]

Listening = tuple[Any, Callable[[Connection], Handler]]
"""What a link listener needs to know of a caller it accepts: the type it sends, and who handles it."""

_IN_SERVICE, _NO_FAULTS = Limits(), Faults()


class KvLink:
    """Everything is called on the loop's thread; the `Put`s handed out are called on the engine's.

    Deadlines are seconds on time.monotonic()."""

    def __init__(
        self,
        *,
        name: str,
        pool: Pool,
        settings: TransferSettings,
        link: LinkSettings,
        events: KvEvents,
        run_dir: Path | None = None,
        limits: Limits = _IN_SERVICE,
        faults: Faults = _NO_FAULTS,
    ) -> None:
        """`run_dir`: where the Unix socket of shared memory goes; without one it has no name in the file
        system, and machines in other network namespaces cannot reach it. Raises ValueError if the link's
        secret cannot be read, OSError if there is too little memory for the ledger."""
        self.counts = Counts()
        self._pool = pool
        self._settings = settings
        self._events = events
        self._limits = limits
        self._faults = faults
        self._secret = Keyring(link.secret_file)
        self._pulse = Pulse(link.heartbeat_seconds, link.dead_after_seconds)
        self._hello = greeting(pool.layout, settings.transport)
        self._me = Hello("machine", name, secrets.token_hex(8), host_id(), msgspec.Raw(self.hello_body()))
        self._ledger = Ledger.create(layers=pool.layout.layers, blocks=pool.layout.blocks)
        self._place = Place(name, pool, self._ledger, settings.data_host, run_dir)
        self._token: TokenSide | None = None
        self._prompt: PromptSide | None = None

    async def start(self) -> None:
        """Open the data doors. Raises TransportError with a sentence if a transport that was asked for
        cannot be had here."""
        context = Context(
            host=self._me.host,
            pool=self._pool,
            settings=self._settings,
            limits=self._limits,
            faults=self._faults,
            events=self._events,
            counts=self.counts,
            loop=asyncio.get_running_loop(),
        )
        self._token = TokenSide(context, self._place, self._dial)
        self._prompt = PromptSide(context)
        self._token.start()

    async def close(self) -> None:
        """End every transfer, tell the peers, wait (bounded) for their writers, give everything back. The
        pool stays its owner's."""
        if self._prompt:
            await self._prompt.close()
        if self._token:
            await self._token.close()
        self._ledger.close()

    # ---- token machine

    def arm(self, transfer: str, *, prompt_machine: str, blocks: Sequence[int], deadline: float) -> None:
        """Let a prompt machine, at a link address, put a prompt's KV into these blocks, logical block i
        into blocks[i]. Raises ValueError for blocks that do not exist or still have a writer, and for a
        transfer that is armed already."""
        self._token_side.arm(transfer, prompt_machine=prompt_machine, blocks=blocks, deadline=deadline)

    def revoke(self, transfer: str, reason: str) -> None:
        """Take it back; `fenced` follows. Unknown transfers, also those that arrived, are ignored."""
        self._token_side.revoke(transfer, reason)

    # ---- prompt machine

    def expect(self, transfer: str, *, deadline: float) -> None:
        """Wait for a transfer's ticket. Raises ValueError if it is expected already."""
        self._prompt_side.expect(transfer, deadline)

    def forget(self, transfer: str, reason: str) -> None:
        """Give a transfer up; `drained` follows. Unknown transfers, also sealed ones, are ignored."""
        self._prompt_side.forget(transfer, reason)

    # ---- the machine's listener

    def hello_body(self) -> bytes:
        """What our side of a link hello between machines says, as msgpack for `Hello.body`."""
        return msgspec.msgpack.encode(self._hello)

    def accept(self, hello: Hello) -> Listening:
        """A machine calls. Raises Refused with a sentence that names every field that differs."""
        peer = check(self._hello, hello, same_host=hello.host == self._me.host)
        return TokenMessage, lambda connection: self._prompt_side.accept(connection, peer)

    # ---- for metrics and readiness

    @property
    def quarantined_blocks(self) -> int:
        """Blocks that a hanging prompt machine may still write."""
        return self._token_side.tickets.quarantined_blocks

    @property
    def is_quarantine_full(self) -> bool:
        """Whether so many blocks are in quarantine that no more tickets are given out."""
        return self.quarantined_blocks >= self._token_side.tickets.quarantine_limit

    @property
    def open_transfers(self) -> int:
        """Transfers that still hold something here, on either side."""
        return len(self._token_side.tickets) + len(self._prompt_side)

    @property
    def turned_away(self) -> int:
        """Data connections without the right secret."""
        return self._token_side.doors.turned_away

    # ---- inside

    @property
    def _token_side(self) -> TokenSide:
        if self._token is None:
            raise RuntimeError("start the KV link first")
        return self._token

    @property
    def _prompt_side(self) -> PromptSide:
        if self._prompt is None:
            raise RuntimeError("start the KV link first")
        return self._prompt

    async def _dial(self, callee: Callee) -> Connection:
        connection = await dial(
            callee.address,
            hello=self._me,
            secret=self._secret,
            inbound=PromptMessage,
            handler=callee,
            timeout=self._limits.open_within,
            pulse=self._pulse,
        )
        try:
            check(self._hello, connection.peer, same_host=connection.peer.host == self._me.host)
        except Refused as refused:
            connection.close(str(refused))
            raise LinkError(str(refused)) from refused
        return connection
