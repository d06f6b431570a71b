"""A ServiceMonitor for clusters that have the Prometheus operator."""

from controlplane import names
from controlplane.names import Manifest
from controlplane.target import Target


def service_monitor(target: Target) -> Manifest | None:
    """Scrapes every machine and router of the deployment; None where the cluster knows no such kind."""
    if not (target.monitors and target.settings.service_monitors):
        return None
    head = target.child("monitoring.coreos.com/v1", "ServiceMonitor", target.name)
    return head | {
        "spec": {
            "selector": {"matchLabels": names.selector(target.name)},
            "endpoints": [{"port": "metrics"}, {"port": "http", "path": "/metrics"}],
            "podTargetLabels": [names.DEPLOYMENT, names.POOL, names.REVISION],
        }
    }
