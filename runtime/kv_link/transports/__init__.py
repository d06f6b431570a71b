"""The transports there are, by the name a setting asks for, the best first."""

from runtime.kv_link.transport import Transport
from runtime.kv_link.transports.shm import Shm
from runtime.kv_link.transports.tcp import Tcp

TRANSPORTS: dict[str, Transport] = {transport.name: transport for transport in (Shm(), Tcp())}
