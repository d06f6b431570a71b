"""What a machine counts. Units are in the names; nothing here knows a prompt's or an answer's text."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from runtime.config import MachineSettings
from runtime.engine import EngineInfo
from runtime.wire import FINISHED, Load, Transfer

_STEP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_VISIBLE = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class MachineMetrics:
    """All of one machine's series, in a registry of their own."""

    def __init__(self, settings: MachineSettings, info: EngineInfo) -> None:
        self.registry = CollectorRegistry()
        self._about(settings, info)
        self.legs = self._counter("splitwise_legs", "Legs begun, by phase", "phase")
        self._step = self._histogram("splitwise_engine_step_seconds", "Duration of an engine step", _STEP)
        self._tokens = self._counter("splitwise_engine_tokens", "Tokens sampled")
        self._waiting = self._gauge("splitwise_sequences_waiting", "Sequences in queue")
        self._running = self._gauge("splitwise_sequences_running", "Sequences in the batch")
        self._queued = self._gauge("splitwise_prompt_tokens_waiting", "Prompt tokens in queue")
        blocks = self._gauge("splitwise_kv_blocks", "KV blocks of this machine", "state")
        self._blocks, self._used, self._quarantined = map(blocks.labels, ("total", "used", "quarantined"))
        how = ("mode", "transport")
        self._bytes = self._counter("splitwise_kv_received_bytes", "KV bytes taken in", *how)
        self._seconds = self._histogram(
            "splitwise_kv_transfer_seconds", "First put to last put of a KV-cache", _STEP, *how
        )
        self._visible = self._histogram(
            "splitwise_kv_visible_seconds",
            "Last layer computed to arrival: the part that a client can notice",
            _VISIBLE,
            *how,
        )
        self._failures = self._counter("splitwise_kv_transfer_failures", "Transfers that failed")

    def _about(self, settings: MachineSettings, info: EngineInfo) -> None:
        labels = ("machine", "role", "revision", "model")
        about = self._gauge("splitwise_machine_info", "What this machine is", *labels)
        about.labels(settings.name, settings.role, settings.revision, info.model).set(1)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(name, what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, what, labels, buckets=buckets, registry=self.registry)

    def step(self, seconds: float, sampled: int) -> None:
        """One engine step is over."""
        self._step.observe(seconds)
        self._tokens.inc(sampled)

    def load(self, load: Load) -> None:
        """What the engine holds now."""
        self._waiting.set(load.sequences_waiting)
        self._running.set(load.sequences_running)
        self._queued.set(load.prompt_tokens_waiting)
        self._blocks.set(load.kv_blocks)
        self._used.set(load.kv_blocks_used)
        self._quarantined.set(load.kv_blocks_quarantined)

    def transfer(self, stats: Transfer) -> None:
        """A KV-cache has arrived."""
        labels = (stats.mode, stats.transport)
        self._bytes.labels(*labels).inc(stats.bytes)
        self._seconds.labels(*labels).observe(stats.seconds)
        if stats.visible_seconds >= 0:
            self._visible.labels(*labels).observe(stats.visible_seconds)

    def transfer_failed(self, reason: str) -> None:
        if reason != FINISHED:
            self._failures.inc()
