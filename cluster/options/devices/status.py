"""A row of the status for each resource of `spec.devices`: how many devices there are and work.

Pure. The kubelet of a node knows both: `capacity` counts all devices, `allocatable` those that
work. The device agent's log says why one does not. The kubelet does not count what is exposed by
dynamic resource allocation, so that has no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cluster.driver.status.messages import cut_message, few_of
from cluster.driver.status.part import StatusPart
from cluster.model.snapshot import Node
from nodeside.spec.devices import Device, Expose


def status_part(devices: Iterable[Device], nodes: Sequence[Node]) -> StatusPart:
    """Return the rows of `spec.devices` on the nodes of a Driver."""
    counted = (each.resource for each in devices if each.expose is Expose.DEVICE_PLUGIN)
    return StatusPart({"resources": [_resource_row(resource, nodes) for resource in counted]})


def _resource_row(resource: str, nodes: Iterable[Node]) -> dict[str, Any]:
    devices = healthy = 0
    sick: list[str] = []
    for node in nodes:
        present, works = count_devices(resource, node)
        devices += present
        healthy += works
        if works < present:
            sick.append(node.name)
    message = f"{few_of(sick)}: not all devices work" if sick else ""
    return {
        "name": resource,
        "devices": devices,
        "healthy": healthy,
        "message": cut_message(message),
    }


def count_devices(resource: str, node: Node) -> tuple[int, int]:
    """Return how many devices a node has, and how many of them work."""
    return node.capacity.get(resource, 0), node.allocatable.get(resource, 0)


def resource_lines(resources: Iterable[str], node: Node) -> Iterator[str]:
    """Yield a line for each resource that a node's kubelet knows."""
    for resource in resources:
        present, works = count_devices(resource, node)
        if resource in node.capacity:
            yield f"{resource}: {works} of {present} devices work"
