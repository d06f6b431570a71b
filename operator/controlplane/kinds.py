"""The kinds we deal with: where the API server keeps them, and what we may do with them.

The operator's RBAC is generated from this table, so a kind that is used and not listed fails in the tests.
"""

from dataclasses import dataclass

from controlplane.api import GROUP, KIND, PLURAL, VERSION
from controlplane.api.scaler import SCALER_KIND, SCALER_PLURAL

READ = ("list", "watch")
WRITE = ("create", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Kind:
    """`child`: made for a deployment, listed in each pass. `watched`: its changes wake the deployment.
    `status`: verbs on the status subresource. `own`: only in the operator's own namespace."""

    name: str
    group: str
    version: str
    plural: str
    verbs: tuple[str, ...] = (*READ, *WRITE)
    child: bool = True
    watched: bool = True
    cluster: bool = False
    own: bool = False
    status: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "") -> str:
        """The URL path of a collection (of every namespace if None) or of one object in it."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace and not self.cluster else ""
        return f"{base}{scope}/{self.plural}" + (f"/{name}" if name else "")


_RBAC = "rbac.authorization.k8s.io"

_ALL = (
    Kind(KIND, GROUP, VERSION, PLURAL, verbs=("get", *READ), child=False, status=("patch",)),
    Kind(SCALER_KIND, GROUP, VERSION, SCALER_PLURAL, status=("patch",)),
    Kind("ServiceAccount", "", "v1", "serviceaccounts"),
    Kind("Role", _RBAC, "v1", "roles"),
    Kind("RoleBinding", _RBAC, "v1", "rolebindings"),
    Kind("ConfigMap", "", "v1", "configmaps"),
    # Secrets are neither listed nor watched: the operator looks at one by name, and only at its metadata.
    Kind("Secret", "", "v1", "secrets", verbs=("get", "create", "patch"), child=False, watched=False),
    Kind("Service", "", "v1", "services"),
    Kind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
    Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
    Kind("StatefulSet", "apps", "v1", "statefulsets"),
    Kind("Deployment", "apps", "v1", "deployments"),
    Kind("ServiceMonitor", "monitoring.coreos.com", "v1", "servicemonitors", watched=False),
    Kind("Pod", "", "v1", "pods", verbs=READ, child=False),
    Kind("Node", "", "v1", "nodes", verbs=(*READ, "patch"), child=False, watched=False, cluster=True),
    Kind(
        "Lease",
        "coordination.k8s.io",
        "v1",
        "leases",
        verbs=("get", "patch"),  # the chart makes it, so that it goes with the chart
        child=False,
        watched=False,
        own=True,
    ),
    # For the chart's hooks, which have an account of their own.
    Kind(
        "CustomResourceDefinition",
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        verbs=(),
        child=False,
        watched=False,
        cluster=True,
    ),
    Kind("Event", "", "v1", "events", verbs=("create",), child=False, watched=False),
    Kind(
        "HorizontalPodAutoscaler",
        "autoscaling",
        "v2",
        "horizontalpodautoscalers",
        verbs=("list",),
        child=False,
        watched=False,
    ),
)

KINDS = {kind.name: kind for kind in _ALL}

PASSED_ON = (("discovery.k8s.io", "endpointslices", ("get", *READ)),)
"""What the operator only grants to routers; Kubernetes lets nobody grant more than he has."""
