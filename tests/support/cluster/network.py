"""A private network for the whole test run, so that pods can have addresses of their own.

Kubernetes refuses 127.x.x.x as the address of a pod, and other addresses of this machine are few. In
a network namespace of our own every address of 10.64.0.0/10 can be bound, nothing leaves the
machine, and ports never collide with another run's. Root gets one at once; anyone else needs a
kernel that allows user namespaces, and a process that has no threads yet.
"""

import ctypes
import fcntl
import functools
import ipaddress
import os
import pathlib
import socket
import struct
import sys

CLONE_NEWNET = 0x40000000
CLONE_NEWUSER = 0x10000000
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
IFF_UP_RUNNING = 0x1 | 0x40
PODS = ipaddress.IPv4Network("10.64.0.0/10")
SERVICES = ipaddress.IPv4Network("10.0.0.0/16")


def can_bind(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _unshare() -> None:
    """Moves this process (and what it starts) into a new network namespace."""
    flags, user, group = CLONE_NEWNET, os.getuid(), os.getgid()
    if user != 0:
        flags |= CLONE_NEWUSER
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if user != 0:
        own = pathlib.Path("/proc/self")
        (own / "setgroups").write_text("deny")
        (own / "uid_map").write_text(f"{user} {user} 1")
        (own / "gid_map").write_text(f"{group} {group} 1")


def _set(control: socket.socket, interface: str, request: int, address: str) -> None:
    """One ioctl on `struct ifreq` that carries an IPv4 address."""
    value = struct.pack("=HH4s8x", socket.AF_INET, 0, ipaddress.ip_address(address).packed)
    fcntl.ioctl(control, request, struct.pack("16s16s", interface.encode(), value))


def _configure() -> None:
    """Brings loopback up and gives it both ranges; a prefix on loopback is local as a whole."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        up = struct.pack("16sH14x", b"lo", IFF_UP_RUNNING)
        fcntl.ioctl(control, SIOCSIFFLAGS, up)
        for number, network in enumerate((PODS, SERVICES)):
            alias = f"lo:{number}"
            _set(control, alias, SIOCSIFADDR, str(network[1]))
            _set(control, alias, SIOCSIFNETMASK, str(network.netmask))


@functools.cache
def isolate() -> str | None:
    """Enters the private network, once. The reason, if that is not possible here."""
    if can_bind(str(PODS[-2])):
        return None
    if sys.platform != "linux":
        return "pods that run as processes need Linux"
    try:
        if [name for _, name in socket.if_nameindex()] != ["lo"]:
            _unshare()
        _configure()
    except OSError as error:
        return f"no private network ({error.strerror}): run the tests as root or under `unshare -Urn`"
    return None


def free_port() -> int:
    """A port on loopback that nobody holds now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
