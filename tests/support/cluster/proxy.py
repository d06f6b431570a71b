"""A TCP proxy in front of an API server, for a client that shall find it slow, silent or out of reach.

The bytes stay as they are, TLS included: the server's certificate is good for its address, on any port.
"""

import asyncio
import contextlib
from typing import Self
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 20


class Proxy:
    """An async context manager; `url` is what the client uses instead. `delay` is how many seconds late
    each piece of an answer comes."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._reachable = True
        self.delay = 0.0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{self._target.scheme}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """End every connection, and every new one, until `mend`."""
        self._reachable = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def mend(self) -> None:
        self._reachable = True

    def hang(self) -> None:
        """Take connections and questions, and answer nothing, until `resume`."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.CancelledError):
            if not self._reachable:
                return
            await self._join(reader, writer)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on in both directions until either side ends."""
        there, here = await asyncio.open_connection(self._target.hostname, self._target.port)
        with contextlib.closing(here):
            ways = [
                asyncio.create_task(self._pass_on(reader, here, answers=False)),
                asyncio.create_task(self._pass_on(there, writer, answers=True)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        while piece := await reader.read(CHUNK_BYTES):
            if answers:
                await asyncio.sleep(self.delay)
            await self._flowing.wait()
            writer.write(piece)
            await writer.drain()
