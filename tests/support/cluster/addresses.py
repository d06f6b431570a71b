"""Addresses for the nodes and pods of one cluster."""

import itertools
from collections import deque

from cluster.network import PODS

COUNT = 4096
SUBNETS = tuple(PODS.subnets(new_prefix=16))


class Addresses:
    """Hands out addresses of one /16. A freed one is used again as late as possible."""

    def __init__(self, number: int) -> None:
        subnet = SUBNETS[number % len(SUBNETS)]
        self._free = deque(str(host) for host in itertools.islice(subnet.hosts(), COUNT))

    def take(self, wanted: str = "") -> str:
        """A free address; `wanted` if it is one of ours and free."""
        if wanted in self._free:
            self._free.remove(wanted)
            return wanted
        return self._free.popleft()

    def give_back(self, address: str) -> None:
        self._free.append(address)
