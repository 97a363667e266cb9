"""Drivers with a module in common: which of them has, or may get, each node.

Pure. A kernel holds only one module of a name, so two such Drivers would keep unloading each
other's module. If both select a node, the older Driver gets it, but a Driver that is already there
stays. So no node gets a revision whose module another Driver has there, whichever is older: the
administrator has to decide, and both Drivers report the conflict. Drivers that share no node do not
conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from cluster.driver.hardware import former_devices, match_hardware
from cluster.driver.revisions import read_revision
from cluster.driver.status.messages import few_of
from cluster.driver.status.part import StatusPart
from cluster.model.names import config_map_name
from cluster.model.snapshot import DriverObject, Node, RevisionObject, Snapshot
from nodeside.protocol.labels import assigned_label
from nodeside.spec import Driver

ByRival = Mapping[str, Collection[str]]

WAY_OUT: Final = (
    "delete one of the two drivers, or give them different nodes with hardware.nodeSelector"
)


def older_drivers_with_module(snapshot: Snapshot, found: DriverObject) -> tuple[Driver, ...]:
    """Return older Drivers that have a module in common with this one."""
    modules = modules_of(found.driver)
    return tuple(
        other.driver
        for other in snapshot.drivers.values()
        if other.driver is not None
        and (other.created, other.name) < (found.created, found.name)
        and not modules.isdisjoint(modules_of(other.driver))
    )


def nodes_with_conflicting_module(
    snapshot: Snapshot, driver: Driver, came_first: Sequence[Driver]
) -> Mapping[str, set[str]]:
    """Return the nodes that must not get the newest revision of a Driver, by rival."""
    by_rival: dict[str, set[str]] = {}
    own = assigned_label(driver.name)
    nodes = [node for node in snapshot.nodes.values() if own in node.labels] if came_first else []
    for rival in came_first:
        by_rival[rival.name] = {
            node.name for node in filter(_node_selector(snapshot, rival), nodes)
        }
    for rival_name, names in _drivers_with_module(snapshot, driver):
        by_rival.setdefault(rival_name, set()).update(names)
    return by_rival


def _drivers_with_module(snapshot: Snapshot, driver: Driver) -> Iterator[tuple[str, set[str]]]:
    """Yield other Drivers with the nodes where they have a module in common with this one.

    The revision that each node is assigned to decides: an edit of another Driver alone takes no
    node away. Where the DaemonSet does not exist yet, that Driver's newest revision counts.
    """
    modules = modules_of(driver)
    by_driver: dict[str, dict[str, bool]] = {}
    for daemonset in snapshot.daemonsets.values():
        if daemonset.driver != driver.name:
            theirs = _revision_modules(snapshot, daemonset.driver, daemonset.revision)
            common = not modules.isdisjoint(theirs)
            by_driver.setdefault(daemonset.driver, {})[daemonset.assignment] = common
    for other in snapshot.drivers.values():
        assignments = by_driver.get(other.name, {})
        newest = other.name != driver.name and not modules.isdisjoint(modules_of(other.driver))
        if newest or any(assignments.values()):
            key = assigned_label(other.name)
            yield (
                other.name,
                {
                    node.name
                    for node in snapshot.nodes.values()
                    if key in node.labels and assignments.get(node.labels[key], newest)
                },
            )


def _revision_modules(snapshot: Snapshot, driver: str, revision: str) -> frozenset[str]:
    config_map = snapshot.revisions.get(config_map_name(driver, revision))
    return modules_of_revision(config_map) if config_map is not None else frozenset()


@lru_cache(maxsize=1024)
def modules_of_revision(config_map: RevisionObject) -> frozenset[str]:
    return modules_of(read_revision(config_map))


def shared_modules(one: Driver, other: Driver) -> list[str]:
    """Return the names of the modules that both Drivers have."""
    return sorted(modules_of(one) & modules_of(other))


def modules_of(driver: Driver | None) -> frozenset[str]:
    modules = driver.spec.modules if driver is not None else ()
    return frozenset(module.name.replace("-", "_") for module in modules)


def nodes_left_to_older_driver(snapshot: Snapshot, driver: Driver, rival: Driver) -> frozenset[str]:
    """Return the nodes that both select, if `rival` is older and has a module in common.

    A node where this driver is assigned already is not included: removing it would help no one.
    """
    own = assigned_label(driver.name)
    mine, theirs = _node_selector(snapshot, driver), _node_selector(snapshot, rival)
    return frozenset(
        node.name
        for node in snapshot.nodes.values()
        if own not in node.labels and theirs(node) and mine(node)
    )


def _node_selector(snapshot: Snapshot, driver: Driver) -> Callable[[Node], bool]:
    """Return a function that says whether a Driver selects a node, by the rule for its members."""
    hardware, label = driver.spec.hardware, assigned_label(driver.name)
    found = snapshot.drivers.get(driver.name)
    former = former_devices(hardware, found.status) if found is not None else ()
    return lambda node: (
        match_hardware(node, hardware, assigned=label in node.labels, former=former).is_selected
    )


def status_part(contested: ByRival, taken: ByRival) -> StatusPart:
    """Return the complaint about both kinds of nodes, see context/nodes.py."""
    words = [
        f"driver {rival} came first and has a module of the same name: this one is not "
        f"assigned to {few_of(sorted(names))}"
        for rival, names in contested.items()
        if names
    ]
    words += [
        f"driver {rival} has a module of the same name: nothing changes on "
        f"{few_of(sorted(names))} until one of the two drivers leaves them or has other modules"
        for rival, names in taken.items()
        if names
    ]
    message = "; ".join([*words, WAY_OUT]) if words else ""
    return StatusPart(complaints={"ModuleConflict": message})
