"""Authenticated message connections: router to machine, and machine to machine.

A connection carries msgpack frames (`frames`) after both sides proved that they know a key of the
deployment (`handshake`); keys may be replaced while programs run (`keyring`). It notices a silent peer by
heartbeats, and its end is told exactly once. What the messages mean is the business of the layers above.
"""

from runtime.link.connection import Connection, Handler, Listener, Pulse, dial, listen
from runtime.link.handshake import PROTOCOL_VERSION, Hello, LinkError, Refused, host_id
from runtime.link.keyring import Keyring

__all__ = [
    "PROTOCOL_VERSION",
    "Connection",
    "Handler",
    "Hello",
    "Keyring",
    "LinkError",
    "Listener",
    "Pulse",
    "Refused",
    "dial",
    "host_id",
    "listen",
]
