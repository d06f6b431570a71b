"""The CustomResourceDefinitions of SplitwiseDeployment and SplitwisePool."""

from typing import Any

from controlplane.api import CATEGORIES, GROUP, KIND, PLURAL, SHORT_NAMES, SINGULAR, VERSION
from controlplane.api.deployment import SplitwiseDeployment
from controlplane.api.scaler import (
    SCALER_KIND,
    SCALER_PLURAL,
    SCALER_SHORT_NAMES,
    SCALER_SINGULAR,
    SplitwisePool,
)
from controlplane.api.status import Status
from controlplane.generate.schema import Schema, structural

_READY = ".status.conditions[?(@.type=='Ready')]"

_COLUMNS = (
    ("Ready", f"{_READY}.status", 0, "Whether everything is as the spec says."),
    ("Reason", f"{_READY}.reason", 0, "Why, or why not."),
    ("Prompt", ".status.summary.prompt", 0, "Prompt machines, ready and wanted."),
    ("Token", ".status.summary.token", 0, "Token machines, ready and wanted."),
    ("Design", ".status.design", 0, "GPUs of the pools: AA, HH, HA, HHcap or Custom."),
    ("Power", ".status.summary.power", 0, "Power cap of the token machines' GPUs."),
    ("Age", ".metadata.creationTimestamp", 0, ""),
    ("Mixed", ".status.summary.mixed", 1, "Mixed machines, ready and wanted."),
    ("Transport", ".status.summary.transport", 1, "KV transport in use."),
    ("Model", ".spec.model.name", 1, "Name of the model."),
    ("URL", ".status.endpoint", 1, "Where clients inside the cluster connect to."),
    ("Message", f"{_READY}.message", 1, "Why, or why not, as a sentence."),
)


def _column(name: str, path: str, priority: int, description: str) -> dict[str, Any]:
    column: dict[str, Any] = {
        "name": name,
        "type": "date" if name == "Age" else "string",
        "jsonPath": path,
    }
    if description:
        column["description"] = description
    if priority:
        column["priority"] = priority
    return column


def _definition(
    kind: str, plural: str, singular: str, *, short: tuple[str, ...], version: dict[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": singular,
                "shortNames": list(short),
                "categories": list(CATEGORIES),
            },
            "versions": [{"name": VERSION, "served": True, "storage": True} | version],
        },
    }


def _root(schema: Schema) -> Schema:
    """The schema of a whole object: apiVersion, kind and metadata are the API server's to check."""
    properties = schema["properties"] | {
        "apiVersion": {"type": "string", "description": "Version of this API."},
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},
    }
    required = [name for name in schema.get("required", ()) if name == "spec"]
    return {**schema, "properties": properties} | ({"required": required} if required else {})


def deployments() -> dict[str, Any]:
    """The CRD of SplitwiseDeployment."""
    schema = structural(SplitwiseDeployment)
    schema["properties"]["status"] = structural(Status)
    version = {
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
        "schema": {"openAPIV3Schema": _root(_without_field_paths_into_metadata(schema))},
    }
    return _definition(KIND, PLURAL, SINGULAR, short=SHORT_NAMES, version=version)


def pools() -> dict[str, Any]:
    """The CRD of SplitwisePool."""
    columns = (
        ("Desired", ".spec.replicas", "Machines an autoscaler wants."),
        ("Ready", ".status.readyReplicas", "Machines that are ready."),
    )
    version = {
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": "integer", "jsonPath": path, "description": text}
            for name, path, text in columns
        ]
        + [_column("Age", ".metadata.creationTimestamp", 0, "")],
        "schema": {"openAPIV3Schema": _root(structural(SplitwisePool))},
    }
    return _definition(SCALER_KIND, SCALER_PLURAL, SCALER_SINGULAR, short=SCALER_SHORT_NAMES, version=version)


def _without_field_paths_into_metadata(schema: Schema) -> Schema:
    """The API server knows no fields of metadata in a schema, so a rule there points at the object."""
    rules = [
        {key: value for key, value in rule.items() if key != "fieldPath"}
        if rule.get("fieldPath", "").startswith(".metadata")
        else rule
        for rule in schema.get("x-kubernetes-validations", ())
    ]
    return schema | ({"x-kubernetes-validations": rules} if rules else {})
