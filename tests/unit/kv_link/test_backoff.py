"""A machine that does not answer is called ever less often, and at once again once it does."""

from runtime.kv_link.backoff import Backoff


def test_waits_double_up_to_the_most() -> None:
    backoff = Backoff(least=0.1, most=1.0)
    waits = []
    for _ in range(6):
        backoff.failed("a", 100.0)
        waits.append(round(backoff.wait("a", 100.0), 3))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_time_passes_and_addresses_do_not_share() -> None:
    backoff = Backoff(least=0.1, most=1.0)
    backoff.failed("a", 100.0)
    assert backoff.wait("a", 100.5) == 0
    assert backoff.wait("b", 100.0) == 0


def test_success_forgets_the_failures() -> None:
    backoff = Backoff(least=0.1, most=1.0)
    for _ in range(5):
        backoff.failed("a", 100.0)
    backoff.worked("a")
    assert backoff.wait("a", 100.0) == 0
    backoff.failed("a", 100.0)
    assert round(backoff.wait("a", 100.0), 3) == 0.1


def test_old_failures_are_forgotten() -> None:
    backoff = Backoff(least=0.1, most=1.0)
    for number in range(1000):
        backoff.failed(f"10.0.0.{number}", float(number))
    assert len(backoff._failed) < 10


def test_a_thousand_failures_do_not_overflow() -> None:
    backoff = Backoff(least=0.1, most=1.0)
    for _ in range(2000):
        backoff.failed("a", 0.0)
    assert backoff.wait("a", 0.0) == 1.0
