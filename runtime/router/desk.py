"""Gives every choice its machines: asks the policy, books at once, lets choices wait for a missing pool."""

import asyncio
from collections.abc import Callable
from time import monotonic

from runtime.config import RouterSettings
from runtime.errors import NoCapacity
from runtime.policy.routing import route
from runtime.policy.work import NoRoute, Request
from runtime.router.attempt import Place
from runtime.router.books import Books
from runtime.router.choice import Choice
from runtime.router.fleet import Fleet


class Desk:
    """The runtime.router.choice.Desk of a router. `on_place` hears of every route taken."""

    def __init__(
        self, fleet: Fleet, books: Books, settings: RouterSettings, on_place: Callable[[Place], None]
    ) -> None:
        self.restarts = settings.restarts
        self.credit = settings.stream_credit_tokens
        self._fleet = fleet
        self._books = books
        self._degraded = settings.degraded_mode
        self._wait = settings.wait_for_machines_seconds
        self._on_place = on_place
        self._waiting: dict[Choice, asyncio.TimerHandle] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def place(self, choice: Choice) -> None:
        """Run the choice somewhere, as soon as there is a route; fail it when the wait is over."""
        why = self._try(choice)
        if why is None:
            return
        if not self._wait:
            choice.failed(NoCapacity(why))
            return
        loop = asyncio.get_running_loop()
        self._waiting[choice] = loop.call_later(self._wait, self._give_up, choice)

    def withdraw(self, choice: Choice) -> None:
        if timer := self._waiting.pop(choice, None):
            timer.cancel()

    def retry(self) -> None:
        """The fleet has changed: try those that wait again, first come first served."""
        for choice in tuple(self._waiting):
            if choice in self._waiting and self._try(choice) is None:
                self.withdraw(choice)

    def missing(self) -> str | None:
        """Why a small request could not run now; None if it could."""
        found = route(Request(1, 2), self._fleet.loads(), degraded=self._degraded)
        return found.why if isinstance(found, NoRoute) else None

    def _try(self, choice: Choice) -> str | None:
        """Start the choice; or why there is no route."""
        request = choice.request
        found = route(request, self._fleet.loads(), degraded=self._degraded, avoid=choice.avoid)
        if isinstance(found, NoRoute):
            return found.why
        machines = self._fleet.machines
        booking = self._books.book(found, request)
        place = Place(machines[found.prompt], machines[found.token], booking, found.why)
        self._on_place(place)
        choice.placed_at = choice.placed_at or monotonic()
        choice.run(place)
        return None

    def _give_up(self, choice: Choice) -> None:
        if choice not in self._waiting:
            return
        why = self._try(choice)
        self.withdraw(choice)
        if why is not None:
            choice.failed(NoCapacity(f"{why}; none came within {self._wait:g} s"))
