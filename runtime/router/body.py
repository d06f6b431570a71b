"""An answer that goes out whole, once it is complete."""

import asyncio

from runtime.errors import Failure
from runtime.router.answer import Answer
from runtime.router.choice import Choice
from runtime.router.output import Piece
from runtime.router.shapes import Shape


class Body:
    """The runtime.router.answer.Sink of an answer that is not streamed."""

    def __init__(self, answer: Answer, shape: Shape) -> None:
        self._shape = shape
        self._pieces: list[list[Piece]] = [[] for _ in answer.choices]
        self._ended: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()

    async def complete(self) -> bytes:
        """The response object, when it is there. Raises the answer's Failure."""
        failure = await self._ended
        if failure is not None:
            raise failure
        return self._shape.whole(self._pieces)

    def wrote(self, choice: Choice, tokens: int, piece: Piece | None) -> None:
        if piece is not None:
            self._pieces[choice.index].append(piece)
        choice.read(tokens)

    def ended(self, failure: Failure | None) -> None:
        if not self._ended.done():
            self._ended.set_result(failure)
