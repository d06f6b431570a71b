"""How long to leave a machine alone that did not answer. Pure: time comes in."""


class Backoff:
    """Doubles from `least` to `most` seconds with every failure in a row, per address."""

    def __init__(self, *, least: float, most: float) -> None:
        self._least = least
        self._most = most
        self._failed: dict[str, tuple[int, float]] = {}

    def wait(self, address: str, now: float) -> float:
        """Seconds until the next call may be made."""
        _, until = self._failed.get(address, (0, now))
        return max(0.0, until - now)

    def failed(self, address: str, now: float) -> None:
        """A call failed or a connection broke. Addresses that have rested long enough are forgotten."""
        self._failed = {
            other: state for other, state in self._failed.items() if state[1] + 2 * self._most > now
        }
        failures = self._failed.get(address, (0, now))[0] + 1
        delay = min(self._most, self._least * 2 ** min(failures - 1, 32))
        self._failed[address] = (failures, now + delay)

    def worked(self, address: str) -> None:
        """A connection did what it is for."""
        self._failed.pop(address, None)
