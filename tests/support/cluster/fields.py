"""What a pod's environment and files may say about the pod itself (the downward API)."""

import re

from cluster.client import Object
from cluster.container import StartRefused

KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


def field(pod: Object, path: str, *, ip: str, host_ip: str) -> str:
    """The value of `fieldRef.fieldPath`, empty if the pod has none."""
    if keyed := KEYED.fullmatch(path):
        return str(pod["metadata"].get(keyed[1], {}).get(keyed[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = pod["metadata"].get(path.removeprefix("metadata."), {})
        return "".join(f'{key}="{value}"\n' for key, value in sorted(entries.items()))
    own = {"status.podIP": ip, "status.podIPs": ip, "status.hostIP": host_ip}
    if path in own:
        return own[path]
    section, _, key = path.partition(".")
    if section not in ("metadata", "spec"):
        raise StartRefused("CreateContainerConfigError", f"unsupported fieldPath {path}")
    return str(pod[section].get(key, ""))


def expand(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` replaced where NAME is known; `$$(NAME)` is a literal `$(NAME)`."""

    def value(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        return variables.get(match[1], match[0])

    return re.sub(r"\$?\$\(([-._a-zA-Z0-9]+)\)", value, text)
