"""A driver that declares devices, and its ready file."""

from __future__ import annotations

from typing import Any

from nodeside.protocol.node_status import Rung
from nodeside.protocol.ready_file import ReadyRecord, write_ready
from nodeside.spec import Driver
from nodeside.spec.document import parse
from nodeside.system.host import Host

STAGES = {"build": 41.5, "load": 0.25}  # seconds


def driver(*devices: dict[str, Any]) -> Driver:
    """With these entries of `spec.devices`."""
    spec = {"version": "1.0.0", "image": "a", "modules": [{"name": "edu"}], "devices": devices}
    return parse(
        {"apiVersion": "nodeside.io/v1alpha1", "kind": "Driver"}
        | {"metadata": {"name": "edu"}, "spec": {**spec, "devices": list(devices)}}
    )


def say_ready(host: Host, boot_id: str = "") -> None:
    """As the driver does in this boot, or in another one."""
    boot_id = boot_id or Host().boot_id
    write_ready(
        host, ReadyRecord("edu", "1.0.0", "6.1", boot_id, Rung.LOADED, ("edu",), 0.0, STAGES)
    )
