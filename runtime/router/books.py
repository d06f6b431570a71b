"""The router's books: what it gave each machine and has not got back.

Routing decides by these and by nothing else, so a machine that reports late or never changes nothing. A
`Booking` is made the moment a route is chosen and gives back exactly what it took, whatever happens.
"""

from dataclasses import dataclass, field

from runtime.policy.work import MachineLoad, Request, Role, Route


@dataclass(slots=True)
class _Page:
    """One machine's sums; `load` is them as a value, made anew when they changed."""

    prompt: int = 0
    token: int = 0
    kv: int = 0
    bookings: int = 0
    load: MachineLoad | None = None


class Books:
    """Sums per machine name; a machine that comes back under its name finds what is still booked on it."""

    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}

    def load(self, name: str, role: Role, revision: str, kv_tokens_total: int) -> MachineLoad:
        """What we believe this machine is doing."""
        page = self._page(name)
        load = page.load
        if load is None or (load.role, load.revision, load.kv_tokens_total) != (
            role,
            revision,
            kv_tokens_total,
        ):
            load = page.load = MachineLoad(
                name, role, revision, page.prompt, page.token, page.kv, kv_tokens_total
            )
        return load

    def book(self, route: Route, request: Request) -> "Booking":
        """Enter a request on its machine or machines."""
        return Booking(self._page(route.prompt), self._page(route.token), request)

    def forget(self, name: str) -> None:
        """Drop the page of a machine that left for good, unless something is still booked on it."""
        if (page := self._pages.get(name)) and not page.bookings:
            del self._pages[name]

    def open_bookings(self) -> int:
        """How many entries are on all pages; zero when the router is idle."""
        return sum(page.bookings for page in self._pages.values())

    def _page(self, name: str) -> _Page:
        return self._pages.setdefault(name, _Page())


@dataclass(slots=True)
class _Entry:
    """What one booking took from one page."""

    page: _Page
    prompt: int = 0
    token: int = 0
    kv: int = 0
    open: bool = field(default=True)

    def __post_init__(self) -> None:
        self.page.bookings += 1
        self._add(self.prompt, self.token, self.kv)

    def prompt_done(self) -> None:
        if self.prompt:
            self._add(-self.prompt, 0, 0)
            self.prompt = 0

    def close(self) -> None:
        if self.open:
            self.open = False
            self.page.bookings -= 1
            self._add(-self.prompt, -self.token, -self.kv)

    def _add(self, prompt: int, token: int, kv: int) -> None:
        page = self.page
        page.prompt += prompt
        page.token += token
        page.kv += kv
        page.load = None


class Booking:
    """The entries of one attempt: prompt tokens until computed, one token per request in its token phase, KV
    from the start. Each method may be called at any time and more than once."""

    __slots__ = ("_prompt", "_token")

    def __init__(self, prompt: _Page, token: _Page, request: Request) -> None:
        kv = request.prompt_tokens + request.output_tokens
        if prompt is token:
            self._prompt = self._token = _Entry(prompt, request.prompt_tokens, 1, kv)
        else:
            self._prompt = _Entry(prompt, prompt=request.prompt_tokens, kv=request.prompt_tokens + 1)
            self._token = _Entry(token, token=1, kv=kv)

    def prompt_done(self) -> None:
        """The first token is there: the prompt's queue is shorter."""
        if self._prompt.open:
            self._prompt.prompt_done()

    def handed_off(self) -> None:
        """The KV has left the prompt machine."""
        if self._prompt is not self._token:
            self._prompt.close()

    def release(self) -> None:
        """The attempt is over."""
        self._prompt.close()
        self._token.close()
