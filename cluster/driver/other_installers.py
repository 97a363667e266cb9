"""Who else works on a node on what a Driver is for, by what the node shows of it. Pure.

A device plugin of somebody else shows only where this Driver is not assigned: there, its own device
agent offers nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.model.snapshot import Node
from nodeside.protocol.labels import assigned_label
from nodeside.spec.devices import Expose
from nodeside.spec.model import Driver
from nodeside.spec.other_installers import FoundInstaller, find_installers


def others_on_node(driver: Driver, node: Node) -> Iterator[FoundInstaller]:
    """Yield who else works there. The word NODE in `way_out` stands for the node's name."""
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
