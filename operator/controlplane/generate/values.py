"""The chart's values as a model: its schema, and values.yaml with a sentence for each value."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from controlplane.settings import OperatorSettings


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Image(_Values):
    repository: str = Field(description="Name of the image, with its registry if it has one.")
    tag: str = Field("", description="Tag; empty for the chart's appVersion.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="When nodes pull it."
    )


class Crds(_Values):
    upgrade: bool = Field(True, description="Bring the CRDs up to date on helm upgrade, with a hook.")
    keep: bool = Field(
        True, description="Leave the CRDs, and so all deployments, when the chart is uninstalled."
    )


class ServiceAccount(_Values):
    create: bool = Field(True, description="Make one.")
    name: str = Field("", description="Its name; empty for the release's.")
    annotations: dict[str, str] = Field({}, description="Its annotations.")


class Metrics(_Values):
    port: int = Field(8080, ge=1, le=65535, description="Port of /healthz and /metrics.")
    service_monitor: bool = Field(
        False, description="Make a ServiceMonitor for the operator itself; needs the Prometheus operator."
    )


class Test(_Values):
    deployment: str = Field(
        "", description="Deployment that helm test asks for a completion; empty: only the API is looked at."
    )


class Values(_Values):
    """Every value of the chart."""

    image: Image = Field(Image(repository="splitwise-operator"), description="Image of the operator.")
    runtime_image: Image = Field(
        Image(repository="splitwise-runtime"), description="Image of routers and machines."
    )
    image_pull_secrets: list[str] = Field([], description="Secrets to pull the operator's image with.")
    replicas: int = Field(1, ge=1, le=3, description="Operators; one leads, the others stand by.")
    settings: dict[str, Any] = Field({}, description="Settings for all deployments; see below.")
    namespaces: list[str] = Field(
        [], description="Namespaces whose deployments are served, each with a Role; empty for all."
    )
    service_account: ServiceAccount = Field(ServiceAccount(), description="Account of the operator.")
    crds: Crds = Field(Crds(), description="The two CustomResourceDefinitions.")
    metrics: Metrics = Field(Metrics(), description="Health and metrics.")
    resources: dict[str, Any] = Field(
        {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        description="Resources of the operator.",
    )
    pod_annotations: dict[str, str] = Field({}, description="Annotations of the operator's pods.")
    node_selector: dict[str, str] = Field({}, description="Nodes the operator may run on.")
    tolerations: list[dict[str, Any]] = Field([], description="Taints it tolerates.")
    priority_class_name: str = Field("", description="Its priority class.")
    test: Test = Field(Test(), description="What helm test does.")


_FROM_ELSEWHERE = {"router_image", "machine_image", "namespaces"}
"""Settings that the chart makes from other values."""


def settings_fields() -> dict[str, Any]:
    """The fields under `settings`, by their name in YAML."""
    return {
        field.alias or name: field
        for name, field in OperatorSettings.model_fields.items()
        if name not in _FROM_ELSEWHERE
    }


def schema() -> dict[str, Any]:
    """values.schema.json."""
    whole = Values.model_json_schema(by_alias=True)
    settings = OperatorSettings.model_json_schema(by_alias=True)
    kept = {name: settings["properties"][name] for name in settings_fields()}
    whole["properties"]["settings"] = {"type": "object", "additionalProperties": False, "properties": kept}
    whole["properties"]["global"] = {"type": "object", "description": "Helm's own; not used."}
    return {"$schema": "http://json-schema.org/draft-07/schema#"} | _undefined(whole)


def _undefined(schema: dict[str, Any]) -> dict[str, Any]:
    """draft-07 keeps its definitions elsewhere than pydantic."""
    text = json.dumps(schema).replace('"$defs"', '"definitions"').replace("#/$defs/", "#/definitions/")
    result: dict[str, Any] = json.loads(text)
    return result


def file() -> str:
    """values.yaml: the defaults, each with its description above it."""
    lines = ["# Values of the chart; generated from operator/controlplane/generate/values.py.", ""]
    for name, field in Values.model_fields.items():
        lines += _entry(field.alias or name, field.description or "", field.get_default(), 0)
    return "\n".join(lines) + "\n"


def _entry(name: str, description: str, value: Any, indent: int) -> Iterator[str]:
    space = "  " * indent
    yield f"{space}# {description}"
    if name == "settings":
        yield "settings:"
        for key, field in settings_fields().items():
            yield from _entry(key, field.description or "", field.get_default(), 1)
    elif isinstance(value, BaseModel):
        yield f"{space}{name}:"
        for key, field in type(value).model_fields.items():
            yield from _entry(field.alias or key, field.description or "", getattr(value, key), indent + 1)
    else:
        shown = list(value) if isinstance(value, tuple) else value
        text = yaml.safe_dump({name: shown}, width=10**6, sort_keys=False).rstrip("\n")
        yield from (f"{space}{line}" for line in text.split("\n"))
