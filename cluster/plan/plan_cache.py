"""Plans that still hold: only Drivers that a change concerns are planned anew. Pure.

Between two snapshots a few objects change, most often those of one Driver. As in `NodeCache`,
changes are found by comparing the identity of objects, so none can be missed.

Drivers whose plans read one another form a group: they have a module in common, one comes after the
other, or one selects nodes by a label of the other. What concerns one of a group concerns all of
it. The plan of a Driver without actions is kept until something concerns its group, or until the
time at which a plan of its group said that it may change (`Plan.requeue_after`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from cluster.driver.hardware import match_hardware
from cluster.model.actions import Plan
from cluster.model.names import CORDONED, driver_of_label
from cluster.model.snapshot import (
    DriverObject,
    Node,
    PodObject,
    RevisionObject,
    Snapshot,
    StageJob,
    has_stages,
)
from cluster.model.stages import Stages
from cluster.options.conflicts import modules_of, modules_of_revision
from cluster.options.drain.labels import holds_on
from nodeside.protocol.labels import node_driver_name

T = TypeVar("T")
Groups = Mapping[str, frozenset[str]]

ALL: Final = ""  # stands for all Drivers in place of a name

_LONGEST = 3600.0  # seconds that a plan is kept at most


class PlanCache:
    """The plans that still hold, by Driver: planning anew would give the same."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._now = 0.0
        self._groups: Groups = {}
        self._kept: dict[str, Plan] = {}
        self._due_at: dict[str, float] = {}  # wall clock; for every plan, kept or not

    def drop_outdated(self, snapshot: Snapshot, now: float) -> None:
        """Drop the plans that a change or the time since the last snapshot may affect."""
        before, self._snapshot = self._snapshot, snapshot
        earlier, self._now = self._now, now
        self._due_at = {k: v for k, v in self._due_at.items() if k in snapshot.drivers}
        old, self._groups = self._groups, groups_of(snapshot)
        if before is None or now < earlier or old != self._groups:
            self._kept.clear()
        if not self._kept or before is None:
            return
        for name in (*self._due_drivers(), *affected_drivers(before, snapshot)):
            if name == ALL:
                self._kept.clear()
            if not self._kept:
                break
            for each in self._groups.get(name, {name}):
                self._kept.pop(each, None)

    def plan_of(self, driver: str) -> Plan | None:
        """Return the plan that still holds, None if there is none."""
        kept = self._kept.get(driver)
        if kept is None or kept.requeue_after is None:
            return kept
        return replace(kept, requeue_after=self._due_at[driver] - self._now)

    def keep_if_idle(self, driver: str, plan: Plan) -> None:
        """Keep a plan if it has no actions, and reads nothing of Drivers outside its group."""
        self._kept.pop(driver, None)
        wait = _LONGEST if plan.requeue_after is None else min(plan.requeue_after, _LONGEST)
        self._due_at[driver] = self._now if plan.reads_all else self._now + wait
        if not plan.actions and not plan.reads_all:
            self._kept[driver] = plan

    def _due_drivers(self) -> list[str]:
        return [name for name, until in self._due_at.items() if until <= self._now]


def groups_of(snapshot: Snapshot) -> Groups:
    """Return the group of each Driver: those whose plans read one another, and itself."""
    return snapshot.index.look_up(_make_groups, snapshot.drivers, snapshot.revisions)


def _make_groups(
    drivers: Mapping[str, DriverObject], revisions: Mapping[str, RevisionObject]
) -> Groups:
    modules = {name: set(modules_of(each.driver)) for name, each in drivers.items()}
    for each in revisions.values():
        if each.driver in modules:
            modules[each.driver] |= modules_of_revision(each)
    by_bond: dict[tuple[str, str], set[str]] = {}  # the Drivers that have a bond in common
    for name, found in drivers.items():
        bonds = {("driver", name), *(("module", module) for module in modules[name])}
        if found.driver is not None:
            spec = found.driver.spec
            selected = filter(None, map(driver_of_label, spec.hardware.node_selector))
            bonds |= {("driver", other) for other in (*spec.after, *selected)}
        for bond in bonds:
            by_bond.setdefault(bond, set()).add(name)
    for (kind, other), names in by_bond.items():
        if kind == "driver":
            names.add(other)  # even if it does not exist: nodes may have its labels
    groups = {name: {name} for names in by_bond.values() for name in names}
    for names in by_bond.values():
        joined = set().union(*(groups[name] for name in names))
        for name in joined:
            groups[name] = joined
    return {name: frozenset(group) for name, group in groups.items()}


def affected_drivers(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Yield the Drivers that the changes concern, or ALL, in any order."""
    if _parts_that_all_read(before) != _parts_that_all_read(after):
        yield ALL
    for name, old, new in _compare_mappings(before.drivers, after.drivers):
        if old != new:
            yield name
    old_problems, new_problems = before.problems, after.problems
    yield from (
        name
        for name in {*old_problems, *new_problems}
        if old_problems.get(name) != new_problems.get(name)
    )
    for kind in ("daemonsets", "revisions", "node_drivers", "pods", "jobs", "build_pods"):
        for _, old, new in _compare_mappings(getattr(before, kind), getattr(after, kind)):
            yield from {each.driver for each in (old, new) if each}
    yield from _affected_by_nodes(before, after)
    yield from _affected_by_occupancy(before, after)
    yield from _affected_by_stages(before, after)


def _parts_that_all_read(snapshot: Snapshot) -> tuple[object, ...]:
    return (
        snapshot.image_streams,
        snapshot.settings,
        snapshot.toolkit_labels,
        snapshot.toolkits_pending,
        snapshot.stages is None or snapshot.stages.unknown,
    )


def _compare_mappings(
    before: Mapping[Any, T], after: Mapping[Any, T]
) -> Iterator[tuple[Any, T | None, T | None]]:
    """Yield the name, old value and new value of everything that is not the same object."""
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


def _affected_by_nodes(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Yield the Drivers that changes of nodes concern."""
    with_stages: set[str] | None = None
    for name, old, new in _compare_mappings(before.nodes, after.nodes):
        sides = [each for each in (old, new) if each is not None]
        if len({_holds_on(each) for each in sides}) > 1 or len(sides) == 1:
            yield from [ALL] if any(CORDONED in each.labels for each in sides) else ()
        changed = _drivers_of_changed_labels(old, new) if old and new else None
        if changed is not None and all(changed):
            yield from changed
        else:
            with_stages = _drivers_with_stages(after) if with_stages is None else with_stages
            yield from with_stages
            yield from _drivers_on(name, sides, after)


def _holds_on(node: Node) -> tuple[bool, frozenset[str]]:
    """Return whether we cordoned a node, and the Drivers that hold it, which every plan reads."""
    return CORDONED in node.labels, frozenset(name for _, name in holds_on(node.labels))


def _drivers_of_changed_labels(old: Node, new: Node) -> set[str] | None:
    """Return the Drivers whose labels changed, "" for other labels; None if more changed."""
    if replace(new, labels=old.labels, labelled=old.labelled) != old:
        return None
    keys = {*old.labels, *new.labels}
    return {driver_of_label(k) for k in keys if old.labels.get(k) != new.labels.get(k)}


def _drivers_on(name: str, sides: Collection[Node], snapshot: Snapshot) -> Iterator[str]:
    """Yield the Drivers that select a node, before or after its change, or left a trace."""
    labelled = {driver_of_label(key) for each in sides for key in each.labels}
    with_pods = snapshot.index.look_up(_drivers_with_pods, snapshot.pods).get(name, ())
    for key, found in snapshot.drivers.items():
        if (
            key in labelled
            or key in with_pods
            or node_driver_name(key, name) in snapshot.node_drivers
            or _is_selected(found, sides)
        ):
            yield key


def _drivers_with_pods(pods: Mapping[str, PodObject]) -> Mapping[str, set[str]]:
    by_node: dict[str, set[str]] = {}
    for pod in pods.values():
        by_node.setdefault(pod.node, set()).add(pod.driver)
    return by_node


def _drivers_with_stages(snapshot: Snapshot) -> set[str]:
    """Return the Drivers that have stages, or objects, pods or Jobs of stages."""
    stages = snapshot.stages or Stages()
    left = {each.driver for kind in (stages.objects, stages.pods) for each in kind.values()}
    left |= {job.driver for job in snapshot.jobs.values() if isinstance(job, StageJob)}
    return left | {name for name, found in snapshot.drivers.items() if has_stages(found)}


def _is_selected(found: DriverObject, sides: Collection[Node]) -> bool:
    hardware = found.driver.spec.hardware if found.driver else None
    return hardware is not None and any(
        match_hardware(node, hardware, assigned=False).is_selected for node in sides
    )


def _affected_by_occupancy(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Yield the Drivers that evict, if anything about pods to evict changed."""
    if before.occupancy != after.occupancy:
        for name, found in after.drivers.items():
            if found.driver and found.driver.spec.rollout.evict:
                yield name


def _affected_by_stages(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Yield the Drivers that changes of stages concern."""
    old, new = before.stages or Stages(), after.stages or Stages()
    if old is new:
        return
    with_stages = _drivers_with_stages(after)
    for kind in ("objects", "pods"):
        for _, was, now in _compare_mappings(getattr(old, kind), getattr(new, kind)):
            # An object may be in the way of an object of any Driver; a pod is in nobody's way.
            drivers = {each.driver for each in (was, now) if each}
            moved = kind == "objects" and (was is None or now is None or was.driver != now.driver)
            yield from drivers - {""}
            if moved or "" in drivers:
                yield from with_stages
    by_uid = {pod.uid: pod.driver for pod in new.pods.values()} if new.logs else {}
    for uid, _, _ in _compare_mappings(old.logs, new.logs):
        yield by_uid.get(uid, ALL)
    if _parts_that_stages_read(old) != _parts_that_stages_read(new):
        yield from with_stages


def _parts_that_stages_read(stages: Stages) -> tuple[object, ...]:
    return (
        stages.sources,
        stages.services,
        stages.secrets,
        stages.rendered,
        stages.absent,
        stages.cluster_version,
    )
