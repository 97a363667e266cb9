"""Finds other software on a node that does what a Driver is for, by the node's labels. Pure.

Another device plugin is found by the resource that the node offers, but only where this Driver is
not assigned: elsewhere the Driver's own device agent may offer it.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.model.snapshot import Node
from nodeside.protocol.labels import assigned_label
from nodeside.spec.devices import Expose
from nodeside.spec.model import Driver
from nodeside.spec.other_installers import FoundInstaller, find_installers


def find_other_installers(driver: Driver, node: Node) -> Iterator[FoundInstaller]:
    """Yield the other software. The word NODE in `way_out` stands for the node's name."""
    yield from find_installers(driver, node.labels)
    if assigned_label(driver.name) in node.labels:
        return
    for device in driver.spec.devices:
        count = node.allocatable.get(device.resource, 0)
        if device.expose is Expose.DEVICE_PLUGIN and count:
            yield FoundInstaller(
                "another device plugin",
                f"{count} of {device.resource}, and this driver is not assigned",
                "remove that plugin, or give the resource another name in spec.devices",
            )
