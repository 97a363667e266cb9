"""Drivers that come before and after a Driver: `spec.after`.

Pure. On a node the drivers themselves keep the order (nodeside/driver/bringup/neighbours.py). A
plan needs to know the other Drivers for three reasons: a change of a Driver interrupts those after
it too; their consumers have to leave; and a build needs what the builds before it export.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.model.snapshot import Snapshot
from nodeside.spec import Driver


def dependencies_of(snapshot: Snapshot, driver: Driver) -> tuple[Driver, ...]:
    """Return the valid Drivers named in `after`; none if this one comes after itself."""
    if dependency_cycle(snapshot, driver):
        return ()
    found = (_valid_driver(snapshot, name) for name in driver.spec.after)
    return tuple(each for each in found if each is not None)


def dependents_of(snapshot: Snapshot, driver: Driver) -> tuple[Driver, ...]:
    """Return the Drivers that come after this one, directly or not, without those in a cycle."""
    return tuple(_find_followers(snapshot, driver.name))


def _find_followers(snapshot: Snapshot, name: str) -> Iterator[Driver]:
    pairs = [(each.driver, each.deleting) for each in snapshot.drivers.values()]
    valid = [driver for driver, deleting in pairs if driver is not None and not deleting]
    if not any(driver.spec.after for driver in valid):
        return
    seen, names = {name}, [name]
    while names:
        before = names.pop()
        for driver in valid:
            if before in driver.spec.after and driver.name not in seen:
                seen.add(driver.name)
                names.append(driver.name)
                if not dependency_cycle(snapshot, driver):
                    yield driver


def dependency_cycle(snapshot: Snapshot, driver: Driver) -> tuple[str, ...]:
    """Return a cycle from this Driver to itself, by names; each comes after the next one.

    Empty if the Driver does not come after itself.
    """
    paths: list[tuple[str, ...]] = [(driver.name, name) for name in driver.spec.after]
    seen: set[str] = set()
    while paths:
        path = paths.pop()
        if path[-1] == driver.name:
            return path
        if path[-1] not in seen:
            seen.add(path[-1])
            found = _valid_driver(snapshot, path[-1])
            paths += [(*path, name) for name in found.spec.after] if found else []
    return ()


def dependency_problem(snapshot: Snapshot, driver: Driver) -> tuple[str, str]:
    """Return why the Driver cannot be loaded anywhere, as reason and message; empty if it can."""
    if path := dependency_cycle(snapshot, driver):
        words = " after ".join(path)
        return (
            "AfterItself",
            f"{words} is a cycle: none of them is loaded; change spec.after of one of them",
        )
    for name in driver.spec.after:
        found = snapshot.drivers.get(name)
        if found is None:
            return "DriverMissing", (
                f"it comes after driver {name}, which does not exist: create that, or remove it "
                "from spec.after"
            )
        if found.deleting:
            return "DriverMissing", (
                f"it comes after driver {name}, which is being deleted: this one leaves each node "
                f"before {name} does"
            )
    return "", ""


def _valid_driver(snapshot: Snapshot, name: str) -> Driver | None:
    found = snapshot.drivers.get(name)
    return found.driver if found is not None else None
