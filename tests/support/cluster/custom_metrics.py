"""A stand-in for a metrics adapter: serves metrics of pods as `custom.metrics.k8s.io`, to real autoscalers.

The API server passes requests on to it, as an APIService says. Its Service is of the type ExternalName,
so no proxy of Services is needed.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

from cluster.client import Client, Object
from cluster.controlplane import ControlPlane
from cluster.expect import condition
from cluster.follow import wait_for, wait_gone
from cluster.network import free_port
from cluster.podstatus import timestamp

GROUP, VERSION = "custom.metrics.k8s.io", "v1beta2"
API = f"/apis/{GROUP}/{VERSION}"
SERVICE = "apiservices.apiregistration.k8s.io"


@dataclass(slots=True)
class Load:
    """What there is to do in all, which pods share equally; and how often somebody asked."""

    total: int = 0
    asked: int = 0


@contextlib.asynccontextmanager
async def custom_metrics(kube: Client, plane: ControlPlane) -> AsyncIterator[Load]:
    """Every metric of pods, for as long as the block runs. Tell the load by its `total`."""
    load = Load()
    runner = web.AppRunner(_application(kube, load), access_log=None)
    await runner.setup()
    port = free_port()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=_tls(plane)).start()
        name = f"{VERSION}.{GROUP}"
        await kube.apply(*_objects(name, kube.namespace, port))
        try:
            await wait_for(kube, SERVICE, name, condition("Available"))
            yield load
        finally:  # at once: no namespace can go while an API does not answer
            await kube.delete(SERVICE, name)
            await wait_gone(kube, SERVICE, name)
    finally:
        await runner.cleanup()


def _application(kube: Client, load: Load) -> web.Application:
    async def resources(request: web.Request) -> web.Response:
        kind = {"name": "pods/load", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
        listed = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}"}
        return web.json_response(listed | {"resources": [kind | {"singularName": ""}]})

    async def values(request: web.Request) -> web.Response:
        load.asked += 1
        asked, selector = request.match_info, request.query.get("labelSelector", "")
        pods = await kube.list("pods", namespace=asked["namespace"], selector=selector)
        items = [_value(pod, asked["metric"], f"{load.total * 1000 // len(pods)}m") for pod in pods]
        kind = {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        return web.json_response(kind | {"items": items})

    application = web.Application()
    application.add_routes(
        [web.get(API, resources), web.get(f"{API}/namespaces/{{namespace}}/pods/*/{{metric}}", values)]
    )
    return application


def _value(pod: Object, metric: str, value: str) -> Object:
    named = {key: pod["metadata"][key] for key in ("namespace", "name")}
    about = {"apiVersion": "v1", "kind": "Pod"} | named
    return {
        "describedObject": about,
        "metric": {"name": metric},
        "timestamp": timestamp(),
        "value": value,
    }


def _tls(plane: ControlPlane) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(plane.keys.certificate, plane.keys.key)
    return context


def _objects(name: str, namespace: str, port: int) -> list[Object]:
    where = {"name": "metrics", "namespace": namespace, "port": port}
    spec = {"group": GROUP, "version": VERSION, "service": where, "insecureSkipTLSVerify": True}
    spec |= {"groupPriorityMinimum": 100, "versionPriority": 100}
    outside = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"}, "spec": outside},
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": name},
            "spec": spec,
        },
    ]
