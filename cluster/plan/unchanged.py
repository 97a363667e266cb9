"""Drivers whose plan is the one of the look before: nothing to do, since nothing of theirs changed.

Between two looks a few objects change, most often of one Driver; fifty others need not be planned
for again. As in memo.py nobody tells what changed: the objects of a snapshot are compared with the
very ones of the snapshot before. A plan is kept only if it does nothing, waits for nothing, and
rests on nothing of other Drivers (`Plan.alone`); what is not known to concern one Driver alone
concerns all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from cluster.model.actions import Plan
from cluster.model.snapshot import DaemonSetObject, DriverObject, Node, Snapshot
from nodeside.contract import API_GROUP

T = TypeVar("T")

ALL: Final = ""  # in place of the name of a Driver

# Labels that say how one Driver stands on a node. Nobody else's plan looks at them, but of those
# who have a module in common, whose plans are not kept.
_LABEL_OF_ONE = re.compile(rf"{re.escape(API_GROUP)}/([a-z0-9-]+)\.(?:assigned|before|state)")


class Unchanged:
    """The plans of the last look that still hold."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._plans: dict[str, Plan] = {}

    def look(self, snapshot: Snapshot) -> None:
        """Forget the plans of those whom a change concerns."""
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
    """The Drivers that a change concerns; it may be found for ALL at any point."""
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
    """What is not the same object: its name, what it was, and what it is."""
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
    """Whether nothing but what we write changed, for which only its own plan asks."""
    return _wish(before) == _wish(after)


def _wish(found: DriverObject) -> tuple[Any, ...]:
    return found.driver, found.uid, found.created, found.deleting, found.leave_modules


def _serves(found: DaemonSetObject) -> tuple[Any, ...]:
    return found.driver, found.assignment, found.revision, found.pool, found.toolkit, found.deleting


def _by_node(before: Node, after: Node) -> Iterator[str]:
    """Whom a change of a node concerns."""
    if replace(after, labels=before.labels, labelled=before.labelled) != before:
        yield ALL
        return
    for key in {*before.labels, *after.labels}:
        if before.labels.get(key) != after.labels.get(key):
            found = _LABEL_OF_ONE.fullmatch(key)
            yield found[1] if found else ALL
