"""Who may do what: accounts, the router's right to see endpoints, the link Secret, network policies."""

import base64
from collections.abc import Sequence

from controlplane import names
from controlplane.children import config
from controlplane.names import Manifest
from controlplane.target import Target

RULES = "rbac.authorization.k8s.io"


def accounts(target: Target) -> list[Manifest]:
    """Machines may do nothing in the cluster; routers may follow their namespace's EndpointSlices."""
    router, machine = names.router(target.name), names.machine(target.name)
    role = target.child(f"{RULES}/v1", "Role", router, "router") | {
        "rules": [
            {
                "apiGroups": ["discovery.k8s.io"],
                "resources": ["endpointslices"],
                "verbs": ["get", "list", "watch"],
            }
        ]
    }
    binding = target.child(f"{RULES}/v1", "RoleBinding", router, "router") | {
        "roleRef": {"apiGroup": RULES, "kind": "Role", "name": router},
        "subjects": [{"kind": "ServiceAccount", "name": router, "namespace": target.namespace}],
    }
    return [
        target.child("v1", "ServiceAccount", machine) | {"automountServiceAccountToken": False},
        target.child("v1", "ServiceAccount", router, "router"),
        role,
        binding,
    ]


def link_secret(target: Target, key: str) -> Manifest:
    """The Secret by which routers and machines know each other; the key is random, 32 letters or more."""
    head = target.child("v1", "Secret", names.secret(target.name))
    return head | {"type": "Opaque", "data": secret_data([key])}


def secret_data(keys: Sequence[str]) -> dict[str, str]:
    """A link Secret's data: one file, so that a pod never sees half of a change; one key per line."""
    return {config.SECRET_KEY: base64.b64encode("\n".join(keys).encode()).decode()}


def policies(target: Target) -> list[Manifest]:
    """Link and KV ports are for the deployment's own pods, clients reach routers only, metrics are open."""
    if not target.settings.network_policies:
        return []
    own = [{"podSelector": {"matchLabels": names.selector(target.name)}}]
    machines = {
        "podSelector": {
            "matchLabels": names.selector(target.name),
            "matchExpressions": [{"key": names.POOL, "operator": "In", "values": list(names.ROLES)}],
        },
        "policyTypes": ["Ingress"],
        "ingress": [{"from": own}, {"ports": [{"port": config.OBSERVE_PORT, "protocol": "TCP"}]}],
    }
    routers = {
        "podSelector": {"matchLabels": names.selector(target.name, "router")},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"port": target.deployment.spec.router.port, "protocol": "TCP"}]}],
    }
    kind = ("networking.k8s.io/v1", "NetworkPolicy")
    return [
        target.child(*kind, names.machine(target.name)) | {"spec": machines},
        target.child(*kind, names.router(target.name), "router") | {"spec": routers},
    ]
