"""What of a node's labels anybody reads: a change of the others is no news.

A node has a hundred labels that are others' business, and Node Feature Discovery writes them all
the time. All of them are kept, so a Driver that asks for another one finds it; only nobody is woken
for what no Driver asks for. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cluster.model.names import OSTREE_LABEL
from cluster.model.snapshot import DriverObject, Node, uses
from nodeside.contract import API_GROUP
from nodeside.spec.model import Hardware

_OURS: Final = f"{API_GROUP}/"
_DEVICE: Final = "/pci-"


@dataclass(frozen=True, slots=True)
class Attention:
    """`keys` are read besides our own. `devices`: those of PCI devices too. `every`: all."""

    keys: frozenset[str] = frozenset((OSTREE_LABEL,))
    devices: bool = False
    every: bool = False

    def is_news(self, before: Node, after: Node) -> bool:
        """Whether a plan may be another one for what changed of a node."""
        if before == after:
            return False
        if self.every or replace(before, labels=after.labels) != after:
            return True
        return self._read(before.labels) != self._read(after.labels)

    def _read(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {key: value for key, value in labels.items() if self._reads(key)}

    def _reads(self, key: str) -> bool:
        return key in self.keys or key.startswith(_OURS) or (self.devices and _DEVICE in key)


def attention(drivers: Iterable[DriverObject]) -> Attention:
    """What these Drivers read. The manifests of a stage may select nodes by any label."""
    made = Attention()
    for found in drivers:
        every = made.every or uses(found)
        hardware = found.driver.spec.hardware if found.driver else Hardware()
        keys, devices = made.keys | hardware.node_selector.keys(), bool(hardware.pci)
        made = Attention(keys, made.devices or devices, every)
    return made
