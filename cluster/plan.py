"""What is to be done: from everything observed to a list of actions. Pure, and read like a list.

Called by controller.py after every change that matters. The plan of a world in which its actions
were carried out is empty: nothing is remembered here, and an action that is not needed any more is
not planned again. One Driver's plan knows of the others only which modules are theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cluster import conditions
from cluster.actions import (
    FINALIZER,
    Action,
    Apply,
    Delete,
    LabelNode,
    Plan,
    Say,
    SetFinalizers,
    SetStatus,
)
from cluster.daemonset import Wanted, daemonset, differs, name
from cluster.deletion import delete, leave
from cluster.members import At, Member, contested, members
from cluster.pools import assignment, before_label, pool_of
from cluster.resources import CONFIG_MAPS, DAEMON_SETS
from cluster.revision import config_map, config_map_name, read_revision, revision_of, revision_text
from cluster.rollout import Place
from cluster.toolkit import NOTHING_KEPT, Kept, Proven, Resolution, resolve
from cluster.turns import Standing, Verdict, forgiven, standing, verdicts
from cluster.world import DaemonSetObject, DriverObject, Pool, World
from nodeside.contract import Rung, State, assigned_label, state_label
from nodeside.spec import Driver

_SOON = 1.0  # seconds, after which something that is being deleted may be gone
_LOOKS = 8  # at what follows from our own labels; two are usual


def plan(world: World, now: float) -> Plan:
    """The actions for every Driver, and the cleaning up behind those that are gone.

    `now` is the wall clock, for the times in conditions.
    """
    plans = [plan_driver(world, world.drivers[key], now) for key in sorted(world.drivers)]
    soon = [each.again_in for each in plans if each.again_in is not None]
    actions = [action for each in plans for action in each.actions]
    return Plan((*actions, *_orphans(world)), min(soon, default=None))


def plan_driver(world: World, found: DriverObject, now: float) -> Plan:
    """The actions for one Driver, in the order in which they are to be done."""
    if found.deleting:
        return delete(world, found, now)
    if found.driver is None or not found.driver.spec.image:
        mistakes = found.mistakes or "spec.image is missing: a cluster needs the driver image"
        return Plan(tuple(_told(found, conditions.unreadable(found, mistakes, now=now))))
    case, labelled = _to_rest(Case(world, found, found.driver))
    actions = [
        *_finalizer(found),
        *_revisions_made(case),
        *_daemonsets_applied(case, world),
        *labelled,
        *leave(world, found.name, {m.node.name for m in case.members}),
        *_daemonsets_retired(case, world),
        *_revisions_dropped(case),
        *_told(found, conditions.status(case.picture, now=now)),
    ]
    waits = any(world.daemonsets[key].deleting for key in case.wanted if key in world.daemonsets)
    return Plan(tuple(actions), _SOON if waits else None)


@dataclass(frozen=True)
class Case:
    """A Driver in a world, with everything that follows from the two, each computed once.

    `given` are assignments that this plan gives, whose DaemonSets are still to be made.
    """

    world: World
    found: DriverObject
    driver: Driver
    given: Mapping[str, At] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """The driver.yaml of the newest revision."""
        return revision_text(self.driver)

    @cached_property
    def newest(self) -> str:
        return revision_of(self.text)

    @cached_property
    def revisions(self) -> Mapping[str, Driver]:
        """The Driver as of every revision that can still be given to a node."""
        found = {
            each.revision: read_revision(each)
            for each in self.world.revisions.values()
            if each.driver == self.driver.name
        }
        readable = {revision: driver for revision, driver in found.items() if driver is not None}
        return readable | {self.newest: self.driver}

    @cached_property
    def daemonsets(self) -> Sequence[DaemonSetObject]:
        mine = (d for d in self.world.daemonsets.values() if d.driver == self.driver.name)
        return tuple(mine)

    @cached_property
    def known(self) -> Mapping[str, At]:
        """What assignments stand for: those of DaemonSets, and those that a DaemonSet had here."""
        there = {
            found.assignment: At(found.pool, found.revision)
            for found in self.daemonsets
            if assignment(self.driver.name, found.pool, found.revision) == found.assignment
        } | dict(self.given)
        key = assigned_label(self.driver.name)
        lost = {
            pool_of(node)
            for node in self.world.nodes.values()
            if key in node.labels and node.labels[key] not in there
        }
        return there | {
            assignment(self.driver.name, pool, revision): At(pool, revision)
            for pool in lost
            for revision in self.revisions
        }

    @cached_property
    def rivals(self) -> Sequence[Driver]:
        """Drivers that came first and have a module of ours."""
        mine = _modules(self.driver)
        return tuple(
            other.driver
            for other in self.world.drivers.values()
            if other.driver is not None
            and (other.created, other.name) < (self.found.created, self.found.name)
            and not mine.isdisjoint(_modules(other.driver))
        )

    @cached_property
    def contested(self) -> Mapping[str, frozenset[str]]:
        return {r.name: contested(self.world, self.driver, [r]) for r in self.rivals}

    @cached_property
    def members(self) -> Sequence[Member]:
        without = frozenset().union(*self.contested.values())
        return tuple(members(self.world, self.driver, self.known, without))

    @cached_property
    def resolutions(self) -> Mapping[Pool, Resolution]:
        """The toolkit image of each pool."""
        pools = {member.pool for member in self.members}
        kept = {d.pool: Kept(d.toolkit, d.link) for d in self.daemonsets if d.toolkit}
        streams, toolkit = self.world.image_streams, self.driver.spec.toolkit
        found = {
            pool: resolve(pool, toolkit, streams, kept=kept.get(pool, NOTHING_KEPT))
            for pool in pools
        }
        if all(resolution.image for resolution in found.values()):
            return found
        proof = proven(self.world)
        return {
            pool: each if each.image else resolve(pool, toolkit, streams, proof)
            for pool, each in found.items()
        }

    @cached_property
    def served(self) -> frozenset[Pool]:
        """Pools with a toolkit image; all of them if modules may be fetched."""
        prebuilt = bool(self.driver.spec.prebuilt.sources)
        return frozenset(p for p, each in self.resolutions.items() if each.image or prebuilt)

    @cached_property
    def standing(self) -> Standing:
        good = str(self.found.status.get("lastGoodRevision") or "")
        good = good if good in self.revisions else ""
        return standing(self.members, self.driver, self.newest, good, self.served.__contains__)

    @cached_property
    def verdicts(self) -> Sequence[Verdict]:
        return verdicts(self.members, self.driver, self.standing, self.served.__contains__)

    @cached_property
    def wanted(self) -> Mapping[str, At]:
        """By name, the DaemonSets that a node is assigned to once this plan is carried out."""
        ats = {at for verdict in self.verdicts if (at := self.target(verdict)) is not None}
        driver = self.driver.name
        return {name(driver, assignment(driver, at.pool, at.revision)): at for at in ats}

    def target(self, verdict: Verdict) -> At | None:
        """Where a member is after this plan."""
        if verdict.revision is None:
            return verdict.member.at
        return At(verdict.member.pool, verdict.revision) if verdict.revision else None

    @cached_property
    def picture(self) -> conditions.Picture:
        return conditions.Picture(
            found=self.found,
            driver=self.driver,
            standing=self.standing,
            verdicts=self.verdicts,
            resolutions=self.resolutions,
            served=self.served,
            contested=self.contested,
        )


def proven(world: World) -> Proven:
    """Toolkit images that have built a module, by kernel release and architecture."""
    built = {
        (report.driver, report.node)
        for report in world.node_drivers.values()
        if report.source == Rung.BUILT.value and report.state == State.READY.value
    }
    assigned = {
        (driver, node.labels.get(assigned_label(driver), ""))
        for driver, name_ in built
        if (node := world.nodes.get(name_)) is not None
    }
    return {
        (found.pool.kernel, found.pool.architecture): found.toolkit
        for found in world.daemonsets.values()
        if found.toolkit and (found.driver, found.assignment) in assigned
    }


def _modules(driver: Driver) -> frozenset[str]:
    return frozenset(module.name.replace("-", "_") for module in driver.spec.modules)


# --- the steps ---------------------------------------------------------------------------------


def _finalizer(found: DriverObject) -> Iterator[Action]:
    if FINALIZER not in found.finalizers:
        yield SetFinalizers(found.name, found.uid, (*found.finalizers, FINALIZER))


def _revisions_made(case: Case) -> Iterator[Action]:
    """The newest revision; older ones cannot be made again."""
    wanted = config_map_name(case.driver.name, case.newest)
    there = case.world.revisions.get(wanted)
    if there is None or there.document != case.text:
        document = config_map(case.found, case.newest, case.text, case.world.settings)
        if there is not None:  # it is immutable, and not what its name says
            yield Delete(
                case.driver.name, CONFIG_MAPS, wanted, case.world.settings.namespace, there.uid
            )
        yield Apply(case.driver.name, document)


def _daemonsets_applied(case: Case, world: World) -> Iterator[Action]:
    for key in sorted(case.wanted):
        there = world.daemonsets.get(key)
        document = _document(case, there, case.wanted[key])
        if document is None or (there is not None and there.deleting):
            continue
        if there is None or differs(document, there):
            yield Apply(case.driver.name, document)


def _document(case: Case, there: DaemonSetObject | None, at: At) -> Mapping[str, Any] | None:
    """A DaemonSet as it should be; None if it can only stay as it is, its revision being lost.

    One for a pool that no node is in any more keeps its toolkit until its last node has left.
    """
    driver = case.revisions.get(at.revision)
    if driver is None:
        return None
    resolution = case.resolutions.get(at.pool)
    toolkit, link = (there.toolkit, there.link) if there else ("", "")
    if resolution is not None:
        toolkit, link = resolution.image, resolution.link.value
    return daemonset(
        Wanted(case.found, driver, at.revision, at.pool, toolkit, link, case.world.settings)
    )


def _nodes_labelled(case: Case) -> Iterator[LabelNode]:
    """One request for each node that goes somewhere else."""
    for verdict in case.verdicts:
        if verdict.revision is None:
            continue
        labels = _labels(case, verdict)
        if labels:
            yield LabelNode(case.driver.name, verdict.member.node.name, labels, verdict.row.why)
    for member in forgiven(case.verdicts, case.standing):
        gone: dict[str, str | None] = {before_label(case.driver.name): None}
        yield LabelNode(case.driver.name, member.node.name, gone, "the rollout is over")


def _labels(case: Case, verdict: Verdict) -> dict[str, str | None]:
    """What changes of a node's labels.

    The state of one that moved is that of the kernel before. Its new pod, or the wait for one,
    begins with `waiting`; nobody else could say so until that pod runs.
    """
    driver, member, target = case.driver.name, verdict.member, case.target(verdict)
    goes = assignment(driver, target.pool, target.revision) if target else ""
    wanted = {assigned_label(driver): goes, before_label(driver): verdict.before}
    if verdict.place is Place.MOVED and state_label(driver) in member.node.labels:
        wanted[state_label(driver)] = State.WAITING.value
    there = member.node.labels
    return {key: value or None for key, value in wanted.items() if there.get(key, "") != value}


def _to_rest(case: Case) -> tuple[Case, tuple[LabelNode, ...]]:
    """The labels to be set, and the case once they are: from there nothing more follows.

    One look is not always enough: what a node said before may hold again once it is assigned back,
    which leaves room for another one. The status is written last, and is to be true then.
    """
    every: dict[str, LabelNode] = {}
    for _ in range(_LOOKS):
        labelled = tuple(_nodes_labelled(case))
        if not labelled:
            break
        for action in labelled:
            earlier = every[action.node].labels if action.node in every else {}
            every[action.node] = replace(action, labels={**earlier, **action.labels})
        case = _afterwards(case, labelled)
    return case, tuple(every.values())


def _afterwards(case: Case, labelled: Sequence[LabelNode]) -> Case:
    """The same after these labels were set."""
    nodes = dict(case.world.nodes)
    for action in labelled:
        labels = {**nodes[action.node].labels, **action.labels}
        kept = {key: value for key, value in labels.items() if value is not None}
        nodes[action.node] = replace(nodes[action.node], labels=kept)
    there = {key: d for key, d in case.world.daemonsets.items() if _is_left(case, d)}
    given = {key.rpartition("-")[2]: at for key, at in case.wanted.items()}
    status = {**case.found.status, "lastGoodRevision": case.standing.good}
    world = replace(case.world, nodes=nodes, daemonsets=there)
    return Case(world, replace(case.found, status=status), case.driver, given)


def _is_left(case: Case, found: DaemonSetObject) -> bool:
    return found.driver != case.driver.name or found.name in case.wanted


def _daemonsets_retired(case: Case, world: World) -> Iterator[Action]:
    for found in world.daemonsets.values():
        if not _is_left(case, found) and not found.deleting:
            yield Delete(
                case.driver.name,
                DAEMON_SETS,
                found.name,
                case.world.settings.namespace,
                found.uid,
            )


def _revisions_dropped(case: Case) -> Iterator[Action]:
    """Those that no node has, and that no node would be given."""
    needed = {at.revision for at in case.wanted.values()}
    needed |= {case.newest, case.standing.good}
    for found in case.world.revisions.values():
        if found.driver == case.driver.name and found.revision not in needed:
            yield Delete(
                found.driver,
                CONFIG_MAPS,
                found.name,
                case.world.settings.namespace,
                found.uid,
            )


def _told(found: DriverObject, status: Mapping[str, Any]) -> Iterator[Action]:
    """The status if it changed, and an Event if what a person should know did."""
    if status == found.status:
        return
    yield SetStatus(found.name, status)
    old = {c.get("type"): c for c in found.status.get("conditions") or ()}
    for condition in status["conditions"]:
        was = old.get(condition["type"], {})
        changed = (was.get("status"), was.get("reason")) != (
            condition["status"],
            condition["reason"],
        )
        if changed and condition["status"] == "True" and condition["type"] != "Progressing":
            warning = condition["type"] == "Degraded"
            yield Say(found.name, found.uid, warning, condition["reason"], condition["message"])


def _orphans(world: World) -> Iterator[Action]:
    """DaemonSets of Drivers that are gone without us; the rest is the garbage collector's."""
    for found in world.daemonsets.values():
        if found.driver not in world.drivers and not found.deleting:
            yield Delete(found.driver, DAEMON_SETS, found.name, world.settings.namespace, found.uid)
