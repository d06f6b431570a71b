"""What the router counts: one table, from which the docs are made.

Units are in the names. Children with fixed labels are bound once; what can be looked up (machines, open
streams) is looked up when somebody asks.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.router.answer import Answer
from runtime.router.attempt import Place
from runtime.router.machine import Machine
from runtime.wire import Transfer

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_GAP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_TRANSFER = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. A counter's name gets `_total` when shown; `buckets` make a histogram."""

    name: str
    about: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TABLE = (
    Row("splitwise_requests", "Requests by end point and outcome", ("endpoint", "outcome")),
    Row("splitwise_ttft_seconds", "Arrival to first token (TTFT)", buckets=_LATENCY),
    Row("splitwise_e2e_seconds", "Arrival to last token (E2E), answers that ended well", buckets=_LATENCY),
    Row("splitwise_route_wait_seconds", "Arrival to first route", buckets=_LATENCY),
    Row("splitwise_prompt_tokens", "Prompt tokens of requests begun"),
    Row("splitwise_output_tokens", "Output tokens taken"),
    Row("splitwise_routes", "Attempts, by whether their phases were split", ("mode",)),
    Row("splitwise_restarts", "Attempts after a first one"),
    Row("splitwise_kv_bytes", "KV-cache sent between machines", ("mode", "transport")),
    Row("splitwise_kv_seconds", "Duration of a KV transfer", ("mode", "transport"), _TRANSFER),
    Row(
        "splitwise_kv_visible_seconds",
        "The part of a KV transfer after the prompt was computed",
        ("mode", "transport"),
        _TRANSFER,
    ),
)

TBT = Row("splitwise_tbt_seconds", "Between two tokens of a choice (TBT)", buckets=_GAP)

GAUGES = (
    Row("splitwise_streams_open", "Requests being answered"),
    Row("splitwise_choices_waiting", "Choices without a route yet"),
    Row("splitwise_machines", "Machines by role; ready: connected and taking work", ("role", "state")),
    Row("splitwise_machine_legs", "Legs open on a machine", ("machine",)),
    Row("splitwise_machine_load", "What a machine reports of itself", ("machine", "what")),
)  # fmt: skip


class RouterMetrics:
    """All series of one router, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.streams_open = 0
        metrics = {row.name: _make(row, self.registry) for row in TABLE}
        self._requests = metrics["splitwise_requests"]
        self._e2e = metrics["splitwise_e2e_seconds"].observe
        self._wait = metrics["splitwise_route_wait_seconds"].observe
        self._prompt_tokens = metrics["splitwise_prompt_tokens"].inc
        self._output_tokens = metrics["splitwise_output_tokens"].inc
        self._restarts = metrics["splitwise_restarts"].inc
        self._routes = {split: metrics["splitwise_routes"].labels(mode) for split, mode in _MODES.items()}
        self._kv = [metrics[f"splitwise_kv_{what}"] for what in ("bytes", "seconds", "visible_seconds")]
        # runtime.router.answer.Watch
        self.first_token: Callable[[float], None] = metrics["splitwise_ttft_seconds"].observe
        gaps = Gaps(TBT)
        self.registry.register(gaps)
        self.next_token = gaps.observe

    def placed(self, place: Place) -> None:
        """A choice got a route."""
        self._routes[place.split].inc()

    def begun(self, answer: Answer) -> None:
        self.streams_open += 1
        self._prompt_tokens(answer.ask.prompt_tokens)

    def ended(self, answer: Answer, *, outcome: str, now: float) -> None:
        self.streams_open -= 1
        self.refused(answer.ask.kind, outcome)
        self._output_tokens(answer.output_tokens)
        self._restarts(answer.restarts)
        if outcome == "ok":
            self._e2e(now - answer.begun_at)
        for choice in answer.choices:
            if choice.placed_at:
                self._wait(choice.placed_at - answer.begun_at)
            if choice.transfer is not None:
                self._transferred(choice.transfer)

    def refused(self, endpoint: str, outcome: str) -> None:
        """A request is over, or never began."""
        self._requests.labels(endpoint, outcome).inc()

    def _transferred(self, transfer: Transfer) -> None:
        sent, seconds, visible = (metric.labels(transfer.mode, transfer.transport) for metric in self._kv)
        sent.inc(transfer.bytes)
        seconds.observe(transfer.seconds)
        if transfer.visible_seconds >= 0:
            visible.observe(transfer.visible_seconds)


_MODES = {True: "split", False: "whole"}


def _make(row: Row, registry: CollectorRegistry) -> Any:
    if row.buckets:
        return Histogram(row.name, row.about, row.labels, registry=registry, buckets=row.buckets)
    return Counter(row.name, row.about, row.labels, registry=registry)


class Gaps(Collector):
    """A histogram for what happens at every token of every stream: one thread, no lock, no labels."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._counts = [0] * (len(row.buckets) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._row.buckets, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[Metric]:
        names = [*map(str, self._row.buckets), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._row.name, self._row.about, buckets=buckets, sum_value=self._sum)


class LookedUp(Collector):
    """The gauges, read from the router at the moment of asking."""

    def __init__(
        self, metrics: RouterMetrics, machines: Callable[[], Iterable[Machine]], waiting: Callable[[], int]
    ):
        self._metrics = metrics
        self._machines = machines
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        streams, waiting, machines, legs, load = (
            GaugeMetricFamily(row.name, row.about, labels=row.labels) for row in GAUGES
        )
        streams.add_metric([], self._metrics.streams_open)
        waiting.add_metric([], self._waiting())
        known = list(self._machines())
        for role in ("prompt", "token", "mixed", "unknown"):
            alike = [machine for machine in known if machine.role == role]
            machines.add_metric([role, "known"], len(alike))
            machines.add_metric([role, "ready"], sum(machine.usable for machine in alike))
        for machine in known:
            legs.add_metric([machine.name], machine.legs)
            for what in machine.load.__struct_fields__:
                load.add_metric([machine.name, what], float(getattr(machine.load, what)))
        yield from (streams, waiting, machines, legs, load)
