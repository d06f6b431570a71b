"""`helm test`: is the API served, and is a request to a deployment really split?"""

import aiohttp

from controlplane import names
from controlplane.api import KIND, parse
from controlplane.errors import ControlPlaneError
from controlplane.kube import ApiServer
from controlplane.observe import pod_of
from controlplane.routers import Scraped
from runtime.kubernetes import Access

ANSWER_SECONDS = 120.0


class NotServing(ControlPlaneError):
    """The deployment does not do what it should; the message says what is missing."""


async def probe(access: Access, deployment: str) -> str:
    """What was found, as a sentence. `deployment` is NAMESPACE/NAME, or empty to look at the API only.

    Raises ApiError or NotServing."""
    async with ApiServer(access) as kube:
        if not deployment:
            await kube.list(KIND, access.namespace)
            return "the API is served; name a deployment in test.deployment to try a request"
        namespace, _, name = deployment.rpartition("/")
        namespace = namespace or access.namespace
        document = await kube.get(KIND, namespace, name)
        document.pop("status", None)
        spec = parse(document).spec
        pods = [pod_of(pod) for pod in await kube.list("Pod", namespace, names.selector(name, "router"))]
    ready = [f"{pod.address}:{spec.router.port}" for pod in pods if pod.ready]
    if not ready:
        raise NotServing(f"no router of {deployment} is ready")
    return await _ask(ready[0], spec.model.name)


async def _ask(address: str, model: str) -> str:
    """Send one request and look at the split counter. Raises NotServing."""
    patience = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=patience) as session:
        before = await Scraped(session).ask([address])
        body = {"model": model, "prompt": "Say hello.", "max_tokens": 4}
        try:
            async with session.post(f"http://{address}/v1/completions", json=body) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NotServing(f"the router at {address} did not answer: {error!r}") from error
        if answer.status != 200:
            raise NotServing(f"the router answered {answer.status}: {text[:500]}")
        after = await Scraped(session).ask([address])
    if after.split <= before.split:
        raise NotServing("the request was served, but not split: prompt and tokens ran on one machine")
    return "a request was served, prompt and tokens on two machines"
