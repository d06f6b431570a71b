"""An API server in a dictionary: apply, create, merge, delete and list, and nothing else of the real one.

For quick looks at the logic of a pass; the tests in tests/api are the judge.
"""

import copy
import itertools
from collections.abc import Mapping
from typing import Any

from controlplane.errors import ApiError, Conflict, NotFound
from controlplane.merge import merged
from controlplane.names import Manifest


class FakeKube:
    """`objects` by (kind, namespace, name); `calls` are the writes, oldest first. `fail` maps a kind to the
    error of its next write."""

    def __init__(self, *objects: Manifest) -> None:
        self.objects: dict[tuple[str, str, str], Manifest] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.fail: dict[str, ApiError] = {}
        self._uids = itertools.count(1)
        for item in objects:
            self.put(item)

    def put(self, item: Manifest) -> Manifest:
        """As if somebody else had made it."""
        stored = copy.deepcopy(item)
        metadata = stored["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._uids)}")
        metadata.setdefault("generation", 1)
        self.objects[self._key(stored)] = stored
        return stored

    def written(self) -> list[tuple[str, str, str]]:
        """The writes since last asked."""
        calls, self.calls = self.calls, []
        return calls

    async def get(self, kind: str, namespace: str, name: str, *, metadata_only: bool = False) -> Manifest:
        try:
            return copy.deepcopy(self.objects[kind, namespace, name])
        except KeyError:
            raise NotFound(404, f"{kind} {name} not found") from None

    async def list(
        self, kind: str, namespace: str | None, selector: Mapping[str, str] = {}
    ) -> list[Manifest]:
        return [
            copy.deepcopy(item)
            for (found, space, _), item in sorted(self.objects.items())
            if found == kind
            and namespace in (None, space)
            and selector.items() <= item["metadata"].get("labels", {}).items()
        ]

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        self._note("apply", manifest["kind"], manifest["metadata"]["name"], subresource)
        key = self._key(manifest)
        before = self.objects.get(key)
        if subresource:
            assert before is not None
            before["status"] = copy.deepcopy(manifest["status"])
            return before
        after = self.put(merged(before or {}, manifest))
        if before and before.get("spec") != after.get("spec"):
            after["metadata"]["generation"] = before["metadata"]["generation"] + 1
        return after

    async def create(self, manifest: Manifest) -> Manifest:
        self._note("create", manifest["kind"], manifest["metadata"]["name"])
        if self._key(manifest) in self.objects:
            raise Conflict(409, "already exists")
        return self.put(manifest)

    async def patch(self, kind: str, namespace: str, name: str, body: Manifest) -> Manifest:
        self._note("patch", kind, name)
        item = self.objects.get((kind, namespace, name))
        if item is None:
            raise NotFound(404, f"{kind} {name} not found")
        self.objects[kind, namespace, name] = merged(item, body)
        return self.objects[kind, namespace, name]

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        self._note("delete", kind, name)
        self.objects.pop((kind, namespace, name), None)

    def _note(self, verb: str, kind: str, name: str, subresource: str = "") -> None:
        if kind in self.fail:
            raise self.fail.pop(kind)
        self.calls.append((verb, kind + (f"/{subresource}" if subresource else ""), name))

    @staticmethod
    def _key(item: Manifest) -> tuple[str, str, str]:
        metadata = item["metadata"]
        return item["kind"], metadata.get("namespace", ""), metadata["name"]


def pod(name: str, workload: Manifest, *, ready: bool = True, node: str = "n", **status: Any) -> Manifest:
    """A pod of a workload as the API server would have it."""
    template = workload["spec"]["template"]
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": workload["metadata"]["namespace"],
            "labels": template["metadata"]["labels"],
        },
        "spec": {"nodeName": node},
        "status": {"conditions": conditions, "podIP": "10.0.0.1"} | status,
    }


def come_up(kube: FakeKube) -> None:
    """Every workload has all its pods ready, and has seen its latest spec."""
    for key in [key for key in kube.objects if key[0] == "Pod"]:
        del kube.objects[key]
    for item in list(kube.objects.values()):
        if item["kind"] not in ("StatefulSet", "Deployment"):
            continue
        replicas = item["spec"]["replicas"]
        counts = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), replicas)
        item["status"] = {"observedGeneration": item["metadata"]["generation"]} | counts
        for index in range(replicas):
            kube.put(pod(f"{item['metadata']['name']}-{index}", item))
