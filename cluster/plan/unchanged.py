"""Reuse of empty plans for Drivers whose objects did not change since the previous snapshot.

Between two snapshots a few objects change, most often those of one Driver; fifty others need no new
plan. As in memo.py, changes are detected by comparing object identity between the two snapshots. A
plan is kept only if it does nothing, waits for nothing, and does not depend on other Drivers
(`Plan.alone`). A change that is not known to affect one Driver alone affects all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from cluster.model.actions import Plan
from cluster.model.snapshot import DaemonSetObject, DriverObject, Node, Snapshot
from nodeside.protocol.labels import API_GROUP

T = TypeVar("T")

ALL: Final = ""  # stands for all Drivers in place of a name

# Labels with the state of one Driver on a node. The only other plans that read them are those of
# Drivers that share a module with it or select nodes by such a label, and those plans are not kept.
_LABEL_OF_ONE = re.compile(rf"{re.escape(API_GROUP)}/([a-z0-9-]+)\.(?:assigned|before|state)")


def is_of_a_driver(label: str) -> bool:
    """Returns whether a label of a node has the state of a Driver there."""
    return _LABEL_OF_ONE.fullmatch(label) is not None


class Unchanged:
    """The plans of the previous snapshot that still hold."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._plans: dict[str, Plan] = {}

    def look(self, snapshot: Snapshot) -> None:
        """Drops the plans that a change may affect."""
        before, self._before = self._before, snapshot
        for name in _concerned(before, snapshot) if before else ():
            if name == ALL:
                self._plans.clear()
            if not self._plans:
                break
            self._plans.pop(name, None)

    def plan_of(self, driver: str) -> Plan | None:
        return self._plans.get(driver)

    def keep(self, driver: str, plan: Plan) -> None:
        if plan.alone and not plan.actions and plan.again_in is None:
            self._plans[driver] = plan


def _concerned(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Yields the Drivers that changes affect; may yield ALL at any point."""
    if _of_all(before) != _of_all(after) or before.drivers.keys() != after.drivers.keys():
        yield ALL
    for name, old, new in _changes(before.drivers, after.drivers):
        yield name if old and new and _is_the_same_wish(old, new) else ALL
    for _, was, is_ in _changes(before.nodes, after.nodes):
        yield from _by_node(was, is_) if was and is_ else (ALL,)
    for _, had, has in _changes(before.daemonsets, after.daemonsets):
        yield has.driver if had and has and _serves(had) == _serves(has) else ALL
    for _ in _changes(before.revisions, after.revisions):
        yield ALL
    for kind in ("node_drivers", "pods", "jobs", "build_pods"):
        for _, one, other in _changes(getattr(before, kind), getattr(after, kind)):
            yield from {each.driver for each in (one, other) if each}


def _of_all(snapshot: Snapshot) -> tuple[object, ...]:
    return (
        snapshot.image_streams,
        snapshot.settings,
        snapshot.toolkit_labels,
        snapshot.toolkits_pending,
        snapshot.about,
        snapshot.stages is None or snapshot.stages.unknown,
    )


def _changes(
    before: Mapping[str, T], after: Mapping[str, T]
) -> Iterator[tuple[str, T | None, T | None]]:
    """Yields the name, old value and new value of everything that is not the same object."""
    if before is after:
        return
    added = 0
    for name, new in after.items():
        old = before.get(name)
        if old is not new:
            added += old is None
            yield name, old, new
    if len(before) + added > len(after):
        for name in before.keys() - after.keys():
            yield name, before[name], None


def _is_the_same_wish(before: DriverObject, after: DriverObject) -> bool:
    """Returns whether only fields that we write changed; only the Driver's own plan reads those."""
    return _wish(before) == _wish(after)


def _wish(found: DriverObject) -> tuple[Any, ...]:
    return found.driver, found.uid, found.created, found.deleting, found.leave_modules


def _serves(d: DaemonSetObject) -> tuple[Any, ...]:
    return d.driver, d.assignment, d.revision, d.pool, d.toolkit, d.deleting


def _by_node(before: Node, after: Node) -> Iterator[str]:
    """Yields the Drivers that a change of a node affects."""
    if replace(after, labels=before.labels, labelled=before.labelled) != before:
        yield ALL
        return
    for key in {*before.labels, *after.labels}:
        if before.labels.get(key) != after.labels.get(key):
            match = _LABEL_OF_ONE.fullmatch(key)
            yield match[1] if match else ALL
