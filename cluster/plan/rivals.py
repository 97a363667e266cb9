"""Finds Drivers that get in each other's way: on nodes that both select. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from cluster.driver.hardware import match_hardware
from cluster.model.snapshot import Node, Snapshot
from cluster.options.conflicts import WAY_OUT, shared_modules
from nodeside.spec.model import Driver
from nodeside.text.shortlist import shortlist

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Rivalry:
    """Two Drivers for the same modules or devices. `certain`: a node can have only one of them."""

    subject: str
    found: str
    remedy: str
    certain: bool


def find_rivalries(
    nodes: Sequence[Node], drivers: Sequence[Driver], others: Sequence[Driver]
) -> Iterator[Rivalry]:
    """Yield what the Drivers share with others on their common nodes, each pair once."""
    compared: set[frozenset[str]] = set()
    for driver in drivers:
        own: list[Node] | None = None  # of this driver, once somebody shares something with it
        for other in others:
            pair = frozenset((driver.name, other.name))
            if driver.name == other.name or pair in compared:
                continue
            modules, ids = shared_modules(driver, other), _shared_ids(driver, other)
            if not modules and not ids:
                continue
            compared.add(pair)
            if own is None:
                own = [node for node in nodes if is_selected(node, driver)]
            both = (node.name for node in own if is_selected(node, other))
            if shared := list(islice(both, _SHOWN + 1)):
                where = ", ".join(shared[:_SHOWN])
                where += " and more nodes" if len(shared) > _SHOWN else ""
                yield from _compare_drivers(driver, other, modules, ids, where)


def device_rivals_in_words(
    snapshot: Snapshot, driver: Driver, nodes: Iterable[Node]
) -> Iterator[str]:
    """Yield which other Drivers are for the same devices.

    Those for the same modules are in the status.
    """
    others = [each.driver for each in snapshot.drivers.values() if each.driver is not None]
    for each in find_rivalries(tuple(nodes), [driver], others):
        if not each.certain:
            yield f"{each.found}: {each.remedy}"


def is_selected(node: Node, driver: Driver) -> bool:
    return match_hardware(node, driver.spec.hardware, assigned=False).is_selected


def _compare_drivers(
    driver: Driver, other: Driver, modules: Sequence[str], ids: Sequence[str], where: str
) -> Iterator[Rivalry]:
    """Yield one line about a module, or else about a device.

    Drivers for one device may belong together: one may load a second module for a card.
    """
    if modules:
        words = f"driver {other.name} has {shortlist(modules, _SHOWN)} too, on {where}"
        remedy = f"a node gets one of them, and keeps the one that it has; {WAY_OUT}"
        yield Rivalry(f"modules of {driver.name}", words, remedy, certain=True)
    elif other.name not in driver.spec.after and driver.name not in other.spec.after:
        words = f"driver {other.name} is for {shortlist(ids, _SHOWN)} too, on {where}"
        remedy = f"a device has one driver: if both bind it, {WAY_OUT}"
        yield Rivalry(f"devices of {driver.name}", words, remedy, certain=False)


def _shared_ids(one: Driver, other: Driver) -> list[str]:
    """Return the PCI ids that both are for."""
    return [
        f"{mine.vendor}:{mine.device or theirs.device or '*'}"
        for mine in one.spec.hardware.pci
        for theirs in other.spec.hardware.pci
        if mine.vendor == theirs.vendor
        and (mine.device == theirs.device or not (mine.device and theirs.device))
    ]
