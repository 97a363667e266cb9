"""The lab's network: a bridge in a network namespace of its own, and a cable for each node.

    host: nodeside-lab 10.93.0.1/24 -- veth -- | namespace nodeside-lab: bridge -- tap-N -- node N

API server and registry are at the host's address, so that pods reach them; the host reaches nodes
and pods, so that an ordinary shell can use `kubectl logs` and scrape metrics. Nothing is forwarded
to other networks. The names are fixed: there is one lab at a time, and the next one removes what a
killed one left. A tap lives as long as its descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nodeside.errors import SystemRefused
from nodeside.system import process
from tests.node.machine import Cable
from tests.patience import patience

HOST = "10.93.0.1"
MOST_NODES = 8  # each node has routes to the pods of so many
_NAME = "nodeside-lab"  # of the namespace, and of the host's end of the veth
_BRIDGE = "lab"
_PEER = "host"  # the other end, in the namespace
_TIMEOUT = patience(30.0)  # seconds
_NAMESPACES = Path("/run/netns")  # ip-netns(8)
_HINT = "the lab needs root and the kernel's bridge, veth and tun: modprobe bridge veth tun"

# linux/if_tun.h, linux/sched.h
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_CLONE_NEWNET = 0x40000000


def address(number: int) -> str:
    """Of node `number`, from 1."""
    return f"10.93.0.{10 + number}"


def pods(number: int) -> str:
    """The subnet of the pods of a node."""
    return f"10.94.{number}.0/24"


def routes(number: int) -> Mapping[str, str]:
    """From a node to the pods of the others."""
    others = (other for other in range(1, MOST_NODES + 1) if other != number)
    return {pods(other): address(other) for other in others}


class Network:
    """The namespace, the bridge and the way from the host. A context manager."""

    def __enter__(self) -> Network:
        remove()
        try:
            _ip("netns", "add", _NAME)
            _inside("link", "set", "lo", "up")
            _inside("link", "add", _BRIDGE, "type", "bridge", "mcast_snooping", "0")
            _inside("link", "set", _BRIDGE, "up")
            veth = ("type", "veth", "peer", "name", _PEER, "netns", _NAME)
            _ip("link", "add", "name", _NAME, *veth)
            _inside("link", "set", _PEER, "master", _BRIDGE, "up")
            _ip("address", "add", f"{HOST}/24", "dev", _NAME)
            _ip("link", "set", _NAME, "up")
            for number in range(1, MOST_NODES + 1):
                _ip("route", "add", pods(number), "via", address(number))
        except BaseException:
            remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        remove()

    def cable(self, number: int) -> Cable:
        """A new network card for a node; the caller closes its descriptor."""
        name = _tap(number)
        with ThreadPoolExecutor(1) as elsewhere:  # a namespace is a thread's
            descriptor = elsewhere.submit(_open_tap, name).result(_TIMEOUT)
        try:
            _inside("link", "set", name, "master", _BRIDGE, "up")
        except BaseException:
            os.close(descriptor)
            raise
        return Cable(descriptor, f"52:54:00:93:00:{number:02x}")

    def plug(self, number: int, *, into: bool) -> None:
        """Put a node's cable into the bridge, or pull it."""
        _inside("link", "set", _tap(number), "up" if into else "down")


def remove() -> None:
    """Remove what is there of a lab; the veth goes with either of its ends."""
    if Path(f"/sys/class/net/{_NAME}").exists():
        _ip("link", "delete", _NAME)
    if (_NAMESPACES / _NAME).exists():
        _ip("netns", "delete", _NAME)


def _tap(number: int) -> str:
    return f"tap-{number}"


def _ip(*words: str) -> None:
    process.run(["ip", *words], timeout=_TIMEOUT, hint=_HINT)


def _inside(*words: str) -> None:
    _ip("-netns", _NAME, *words)


def _open_tap(name: str) -> int:
    """Make a tap in the namespace, into which this thread goes for good."""
    with open(_NAMESPACES / _NAME, "rb") as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise SystemRefused(
                f"cannot enter network namespace {_NAME}: {errno.errorcode[code]}", hint=_HINT
            )
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise SystemRefused(f"cannot open /dev/net/tun: {error.strerror}", hint=_HINT) from error
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    except OSError as error:
        os.close(descriptor)
        raise SystemRefused(f"cannot make {name}: {error.strerror}", hint=_HINT) from error
    return descriptor
