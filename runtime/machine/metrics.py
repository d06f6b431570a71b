"""What a machine counts. Units are in the names; nothing here knows a prompt's or an answer's text."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from runtime.config import MachineSettings
from runtime.engine import FINISHED, EngineInfo
from runtime.wire import Load, Transfer

_STEP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_VISIBLE = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class MachineMetrics:
    """All of one machine's series, in a registry of their own."""

    def __init__(self, settings: MachineSettings, info: EngineInfo) -> None:
        self.registry = CollectorRegistry()
        in_registry = {"registry": self.registry}
        about = Gauge(
            "splitwise_machine_info", "What this machine is", ["machine", "role", "revision", "model"],
            **in_registry,
        )  # fmt: skip
        about.labels(settings.name, settings.role, settings.revision, info.model).set(1)
        self.legs = Counter("splitwise_legs", "Legs begun, by phase", ["phase"], **in_registry)
        self._step = Histogram(
            "splitwise_engine_step_seconds", "Duration of an engine step", buckets=_STEP, **in_registry
        )
        self._tokens = Counter("splitwise_engine_tokens", "Tokens sampled", **in_registry)
        self._waiting = Gauge("splitwise_sequences_waiting", "Sequences in queue", **in_registry)
        self._running = Gauge("splitwise_sequences_running", "Sequences in the batch", **in_registry)
        self._queued = Gauge("splitwise_prompt_tokens_waiting", "Prompt tokens in queue", **in_registry)
        self._blocks = Gauge("splitwise_kv_blocks", "KV blocks of this machine", ["state"], **in_registry)
        labels = ["mode", "transport"]
        self._bytes = Counter("splitwise_kv_received_bytes", "KV bytes taken in", labels, **in_registry)
        self._seconds = Histogram(
            "splitwise_kv_transfer_seconds", "First put to arrival", labels, buckets=_STEP, **in_registry
        )
        self._visible = Histogram(
            "splitwise_kv_visible_seconds",
            "Last layer computed to arrival: the part that a client can notice",
            labels,
            buckets=_VISIBLE,
            **in_registry,
        )
        self._failures = Counter(
            "splitwise_kv_transfer_failures", "Transfers that ended in a failure", **in_registry
        )

    def step(self, seconds: float, sampled: int, load: Load) -> None:
        """One engine step is over."""
        self._step.observe(seconds)
        self._tokens.inc(sampled)
        self._waiting.set(load.sequences_waiting)
        self._running.set(load.sequences_running)
        self._queued.set(load.prompt_tokens_waiting)
        self._blocks.labels("total").set(load.kv_blocks)
        self._blocks.labels("used").set(load.kv_blocks_used)
        self._blocks.labels("quarantined").set(load.kv_blocks_quarantined)

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
