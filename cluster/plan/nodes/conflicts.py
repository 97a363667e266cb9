"""Drivers with a module in common: the nodes that another Driver has, or has first claim to.

Pure. A kernel holds only one module of a name, so two such Drivers would keep unloading each
other's module. If both select a node, the older Driver gets it, but a Driver that is already there
stays. So no node gets a revision whose module another Driver has there, whichever is older: the
administrator has to decide, and both Drivers report the conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from cluster.model.names import config_map_name
from cluster.model.snapshot import DriverObject, Node, RevisionObject, Snapshot
from cluster.plan.nodes.hardware import has_hardware
from cluster.plan.objects.revision import read_revision
from nodeside.contract import assigned_label
from nodeside.spec import Driver


def elders(snapshot: Snapshot, found: DriverObject) -> tuple[Driver, ...]:
    """Returns older Drivers that have a module in common with this one."""
    mine = _modules(found.driver)
    return tuple(
        other.driver
        for other in snapshot.drivers.values()
        if other.driver is not None
        and (other.created, other.name) < (found.created, found.name)
        and not mine.isdisjoint(_modules(other.driver))
    )


def taken(
    snapshot: Snapshot, driver: Driver, came_first: Sequence[Driver]
) -> Mapping[str, set[str]]:
    """Returns the nodes that must not get the newest revision of a Driver, by rival."""
    found: dict[str, set[str]] = {}
    own = assigned_label(driver.name)
    ours = [node for node in snapshot.nodes.values() if own in node.labels] if came_first else []
    for rival in came_first:
        found[rival.name] = {node.name for node in ours if _is_for(rival, node)}
    for name, there in _holders(snapshot, driver):
        found.setdefault(name, set()).update(there)
    return found


def _is_for(driver: Driver, node: Node) -> bool:
    assigned = assigned_label(driver.name) in node.labels
    return has_hardware(node, driver.spec.hardware, assigned=assigned).wanted


def _holders(snapshot: Snapshot, driver: Driver) -> Iterator[tuple[str, set[str]]]:
    """Yields other Drivers with the nodes where they have a module in common with this one.

    The revision that each node is assigned to decides: an edit of another Driver alone takes no
    node away. Where the DaemonSet does not exist yet, that Driver's newest revision counts.
    """
    mine = _modules(driver)
    there: dict[str, dict[str, bool]] = {}
    for found in snapshot.daemonsets.values():
        if found.driver != driver.name:
            common = not mine.isdisjoint(_revision_modules(snapshot, found.driver, found.revision))
            there.setdefault(found.driver, {})[found.assignment] = common
    for other in snapshot.drivers.values():
        assignments = there.get(other.name, {})
        newest = other.name != driver.name and not mine.isdisjoint(_modules(other.driver))
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
    found = snapshot.revisions.get(config_map_name(driver, revision))
    return _modules_of(found) if found is not None else frozenset()


@lru_cache(maxsize=1024)
def _modules_of(found: RevisionObject) -> frozenset[str]:
    return _modules(read_revision(found))


def _modules(driver: Driver | None) -> frozenset[str]:
    modules = driver.spec.modules if driver is not None else ()
    return frozenset(module.name.replace("-", "_") for module in modules)


def contested(snapshot: Snapshot, driver: Driver, rivals: Sequence[Driver]) -> frozenset[str]:
    """Returns the nodes selected by `rivals`: older Drivers with a module in common with `driver`.

    A node where this driver is assigned already is not included: removing it would help no one.
    """
    own = assigned_label(driver.name)
    return frozenset(
        node.name
        for node in snapshot.nodes.values()
        if own not in node.labels
        and any(
            has_hardware(
                node, rival.spec.hardware, assigned=assigned_label(rival.name) in node.labels
            ).wanted
            for rival in rivals
        )
    )
