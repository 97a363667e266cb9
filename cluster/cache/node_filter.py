"""Decides which changes of a node wake the controller.

A node has a hundred labels that do not concern us, and Node Feature Discovery rewrites them all the
time. All labels are kept, so that a new Driver may select nodes by any of them. Changes of
labels that no Driver reads do not wake the controller. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cluster.model.names import OSTREE_LABEL
from cluster.model.snapshot import DriverObject, Node, has_stages
from cluster.model.stage_order import awaited_resources, stages_of
from nodeside.protocol.labels import API_GROUP
from nodeside.spec.model import Hardware

_OURS: Final = f"{API_GROUP}/"
_DEVICE: Final = "/pci-"


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """The label keys that are read: our own and `keys`.

    `devices`: also those of PCI devices. `every`: all labels. `resources`: the extended resources
    that stages wait for or Drivers declare.
    """

    keys: frozenset[str] = frozenset((OSTREE_LABEL,))
    devices: bool = False
    every: bool = False
    resources: frozenset[str] = frozenset()

    def is_relevant_change(self, before: Node, after: Node) -> bool:
        """Return whether the change of a node may change a plan."""
        if before == after:
            return False
        alike = replace(
            before, labels=after.labels, capacity=after.capacity, allocatable=after.allocatable
        )
        if alike != after or self._awaited_counts(before) != self._awaited_counts(after):
            return True
        if self.every:
            return before.labels != after.labels
        return self._labels_read(before.labels) != self._labels_read(after.labels)

    def _awaited_counts(self, node: Node) -> list[tuple[int | None, int | None]]:
        return [(node.capacity.get(name), node.allocatable.get(name)) for name in self.resources]

    def _labels_read(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {key: value for key, value in labels.items() if self._is_read(key)}

    def _is_read(self, key: str) -> bool:
        return key in self.keys or key.startswith(_OURS) or (self.devices and _DEVICE in key)


def node_filter_of(drivers: Iterable[DriverObject]) -> NodeFilter:
    """Return what these Drivers read. The manifests of a stage may select nodes by any label."""
    total = NodeFilter()
    for each in drivers:
        every = total.every or has_stages(each)
        hardware = each.driver.spec.hardware if each.driver else Hardware()
        keys, devices = total.keys | hardware.node_selector.keys(), bool(hardware.pci)
        resources = total.resources.union(*_awaited_resources(each))
        total = NodeFilter(keys, total.devices or devices, every, resources)
    return total


def _awaited_resources(found: DriverObject) -> Iterator[Mapping[str, int]]:
    if found.driver:
        for stage in stages_of(found.driver.spec):
            yield awaited_resources(stage, found.driver.spec)
