"""Everything a deployment consists of, one file per kind of child; nothing here talks to a cluster.

model.py      where the weights are mounted
config.py     settings files, from the runtime's own classes
placement.py  which nodes, which devices
pods.py       what all pods have in common
pools.py      a pool: StatefulSet, headless Service, disruption budget, scaler object
router.py     Deployment, Service, disruption budget
access.py     accounts, the router's Role, the link Secret, network policies
monitors.py   ServiceMonitor
"""

from controlplane.children.desired import Desired, desired

__all__ = ["Desired", "desired"]
