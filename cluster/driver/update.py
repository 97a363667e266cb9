"""Decides which nodes change now, from the phase of a rollout, its budget and its canaries.

Pure; called by plan/context/rollout.py. Everything is recomputed from the observed state. State
that must outlive a controller is stored in the Driver's status (the last good revision and the
casualties of the newest) and on the nodes (the label `before`: the assignment under which the
driver worked until we changed the node).

Amounts: `maxUnavailable` nodes may be without a working driver at a time, whatever the cause. This
includes failed nodes, so with a budget of one the first failure holds the rollout. It also includes
nodes that are down, except for a few machines that have been dead for a long time. A
percentage is rounded down, to at least one; 0 changes no working node at all. `maxFailed` is the
number of failures that stops a rollout, at least one. It matters where `maxUnavailable` would allow
more failures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cluster.driver.nodes import DriverNode, NodeCache
from cluster.driver.rollout_state import (
    RolloutState,
    is_working,
    supply_of,
    was_broken_by_change,
    worked_before,
)
from cluster.driver.update_table import Act, UpdateRow, UpdateSituation, decide_update
from cluster.model.snapshot import Pool
from cluster.model.states import Boot, Health, Phase, Place, Supply
from nodeside.protocol.node_status import State
from nodeside.spec import Driver
from nodeside.spec.model import Upgrade
from nodeside.text.shortlist import shortlist

_NAMED = 3  # nodes named in a reason


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """The decision for a member. `revision` is the one to assign, "" for none; None: no change.

    `before` is the assignment under which the member worked until now, "" if it did not work.
    `held_for` is why the member has to wait for the sake of another driver, "" if it need not.
    """

    member: DriverNode
    place: Place
    row: UpdateRow
    revision: str | None = None
    before: str = ""
    held_for: str = ""


@dataclass
class DependentBudget:
    """How many more nodes a driver that comes after this one can do without, during one plan.

    `working` are the nodes where that driver works; a change of this one interrupts it there.
    `away` are the nodes that it does without already.
    """

    driver: str
    allowed: int
    working: Collection[str]
    away: set[str]

    def why_not(self, node: str) -> str:
        """Return why a node must not change, for the sake of that driver; "" if it may."""
        if node not in self.working or node in self.away or len(self.away) < self.allowed:
            return ""
        names = shortlist(sorted(self.away), _NAMED)
        words = f"maxUnavailable of driver {self.driver}, which comes after, is {self.allowed}"
        return f"{words}, and unavailable: {names}" if names else words

    def take(self, node: str) -> None:
        if node in self.working:
            self.away.add(node)


def decide_updates(
    all_members: Sequence[DriverNode],
    driver: Driver,
    rollout: RolloutState,
    supplies: Mapping[Pool, Supply],
    memory: NodeCache[NodeDecision] | None = None,
    *,
    dependents: Sequence[DependentBudget] = (),
    unbuilt: Mapping[Pool, str] = MappingProxyType({}),
    hindered: Mapping[str, int] = MappingProxyType({}),
) -> tuple[NodeDecision, ...]:
    """Return the decision for each member, in the same order.

    `memory` caches the decisions for members whose turn it was not. `dependents` are the budgets of
    the drivers that come after this one. `unbuilt` has the pools for which one of these drivers is
    not built, and why. `hindered` are nodes where drivers before this one do not work, by how much
    that speaks against them as canaries.
    """
    upgrade, memory = driver.spec.upgrade, NodeCache() if memory is None else memory
    cached = memory.results_for((rollout.phase, rollout.newest, rollout.good, upgrade, supplies))
    decisions = []
    for member in all_members:
        decision = cached.get(member.node.name)
        if decision is None or decision.member is not member:
            decision = cached[member.node.name] = _decide_without_turn(
                member, upgrade, rollout, supplies
            )
        decisions.append(decision)
    memory.forget_others({member.node.name for member in all_members})
    changing = [decision for decision in decisions if _takes_turn(decision)]
    granted, held_for = _choose_nodes(changing, rollout, dependents, unbuilt, hindered)
    return tuple(
        _apply_row(each.member, each.place, each.row, rollout, turn=True)
        if each.member.node.name in granted
        else replace(each, held_for=held_for[each.member.node.name])
        if each.member.node.name in held_for
        else each
        for each in decisions
    )


def _decide_without_turn(
    member: DriverNode, upgrade: Upgrade, rollout: RolloutState, supplies: Mapping[Pool, Supply]
) -> NodeDecision:
    place = member.place(rollout.newest, rollout.good)
    supply = supply_of(member, supplies.__getitem__)
    health = Health.OUTDATED if _is_echo(member, rollout.newest) else member.health
    row = decide_update(UpdateSituation(place, rollout.phase, health, member.boot, upgrade, supply))
    return _apply_row(member, place, row, rollout, turn=False)


def nodes_to_forgive(
    every: Sequence[NodeDecision], rollout: RolloutState
) -> tuple[DriverNode, ...]:
    """Return the members that lose their label `before`: the rollout that broke them is over.

    It is over when the last node that is up has been assigned the newest revision, be it now. Only
    members that do not work are included. On working members the label has no effect, and there may
    be thousands of them, so it stays.
    """
    if rollout.phase is not Phase.SETTLED or any(_remains_stale(each) for each in every):
        return ()
    return tuple(each.member for each in every if _is_forgiven(each, rollout.newest))


def _is_forgiven(decision: NodeDecision, newest: str) -> bool:
    member = decision.member
    if decision.revision == newest:  # its present assignment is unknown
        return bool(decision.before) and member.health is Health.DOWN
    is_newest = decision.place is Place.NEWEST and bool(member.worked_with)
    return is_newest and member.health in (Health.BROKEN, Health.DOWN)


def _remains_stale(decision: NodeDecision) -> bool:
    is_stale = decision.place is Place.STALE and decision.revision is None
    return is_stale and decision.member.health is not Health.DOWN


def _choose_nodes(
    changing: Collection[NodeDecision],
    rollout: RolloutState,
    dependents: Sequence[DependentBudget],
    unbuilt: Mapping[Pool, str],
    hindered: Mapping[str, int],
) -> tuple[Collection[str], Mapping[str, str]]:
    """Select the nodes that change now: first those that lose nothing, then by name.

    The second result says, by node, why one whose turn it is waits for another driver.

    A canary must be a node where the driver worked before; others prove nothing. In a first rollout
    it is preferably one that an abandoned revision was tried on; last comes one that is cordoned,
    since it may be about to go, or that waits for its reboot. A node whose drain has begun keeps
    its turn, which is already counted. A node whose drain was given up comes last in its group.
    """
    unavailable, is_first = frozenset(rollout.unavailable), rollout.phase is Phase.FIRST_CANARY
    waiting = []
    for decision in changing if rollout.slots != 0 else ():
        member, place = decision.member, decision.place
        may_be_canary = is_first or worked_before(member, place)
        if not _awaits_turn(member, rollout) or (rollout.slots is not None and not may_be_canary):
            continue
        state = member.last_report.state if member.last_report is not None else ""
        needs_reboot = state == State.REBOOT_REQUIRED.value and member.boot is Boot.RUNNING
        order = (
            is_first and (member.node.unschedulable or needs_reboot),
            hindered.get(member.node.name, 0),
            costs := _uses_budget(member, unavailable),
            is_first and place is Place.UNASSIGNED,
            bool(member.drain.given_up),
            member.node.name,
        )
        waiting.append((order, costs, decision))
    waiting.sort(key=lambda entry: entry[0])
    budget, slots, held_for = rollout.budget, rollout.slots, dict[str, str]()
    held = [each.member for each in changing if each.member.drain.since]
    held.sort(key=lambda member: (member.drain.since, member.node.name))
    # maxUnavailable may be lower now
    granted = {member.node.name for member in held[: rollout.allowed]}
    for _, costs, decision in waiting:
        if slots == 0:
            break
        if costs and budget == 0:
            continue
        member = decision.member
        whys = (unbuilt.get(member.pool, ""), *(d.why_not(member.node.name) for d in dependents))
        why = next(filter(None, whys), "")
        if why and (costs or decision.row.act is not Act.AS_CANARY):
            held_for[member.node.name] = why
            continue
        for dependent in dependents:
            dependent.take(member.node.name)
        granted.add(member.node.name)
        budget -= costs
        slots = None if slots is None else slots - 1
    return granted, held_for


def why_queued(decision: NodeDecision, rollout: RolloutState) -> str:
    """Return why a member that may change does not change now; "" if it does, or may not change."""
    member, allowed = decision.member, rollout.allowed
    may_change = decision.revision is None and _takes_turn(decision)
    if not may_change or not _awaits_turn(member, rollout):  # its drain has begun, or was given up
        return ""
    if decision.held_for:
        return decision.held_for
    may_be_canary = rollout.phase is Phase.FIRST_CANARY or worked_before(member, decision.place)
    if rollout.slots is not None and not may_be_canary:
        return "the canaries are first; it cannot be one, since the driver does not work there"
    if rollout.slots == 0:
        canaries = "canary" if len(rollout.trying) == 1 else "canaries"
        return f"waits for the {canaries} {shortlist(rollout.trying, _NAMED)}"
    if rollout.budget == 0 and _uses_budget(member, rollout.unavailable):
        names = shortlist(rollout.unavailable, _NAMED)
        return f"maxUnavailable is {allowed}" + (f", and unavailable: {names}" if names else "")
    return "other nodes are first: those where the driver does not work, then by name"


def _awaits_turn(member: DriverNode, rollout: RolloutState) -> bool:
    """Return whether the member waits for its turn; after a failed drain, without pods only."""
    if member.drain.since:
        return False
    return member.drain.given_up != rollout.newest or member.drain.is_clear_of_pods


def _takes_turn(decision: NodeDecision) -> bool:
    """Return whether the member changes only in its turn. `_choose_nodes` decides whose it is."""
    act = decision.row.act
    if act is Act.GIVE_NEWEST:
        return _may_evict(decision.member, decision.place)
    return act in (Act.IN_TURN, Act.IN_TURN_OR_GOOD, Act.AS_CANARY)


def _may_evict(member: DriverNode, place: Place) -> bool:
    """Return whether pods may have to leave although the driver does not work.

    The member then waits for its turn, too."""
    return place in (Place.GOOD, Place.STALE) and member.drain.may_have_pods


def _uses_budget(member: DriverNode, unavailable: Collection[str]) -> bool:
    """Return whether a change makes one more node unavailable."""
    if is_working(member):
        return True
    return member.drain.may_have_pods and member.node.name not in unavailable


def _apply_row(
    member: DriverNode, place: Place, row: UpdateRow, rollout: RolloutState, *, turn: bool
) -> NodeDecision:
    match row.act:
        case Act.RELEASE:
            return NodeDecision(member, place, row, "")
        case Act.IN_TURN | Act.IN_TURN_OR_GOOD if turn:
            return _assign_revision(member, place, row, rollout.newest, counts=True)
        case Act.AS_CANARY if turn:
            return _assign_revision(member, place, row, rollout.newest)
        case Act.GIVE_NEWEST if turn or not _may_evict(member, place):
            return _assign_revision(member, place, row, rollout.newest)
        case Act.GIVE_GOOD | Act.IN_TURN_OR_GOOD:
            return _assign_revision(member, place, row, rollout.good)
        case _:
            return NodeDecision(member, place, row)


def _assign_revision(
    member: DriverNode, place: Place, row: UpdateRow, revision: str, *, counts: bool = False
) -> NodeDecision:
    """Assign a revision. With `counts`, the rollout is accountable if the driver worked before.

    A member that an earlier change broke keeps its `before` until it works again, whatever it is
    assigned next.
    """
    before = member.assigned if counts and worked_before(member, place) else ""
    if was_broken_by_change(member, place):
        before = member.worked_with
    return NodeDecision(member, place, row, revision, before)


def _is_echo(member: DriverNode, newest: str) -> bool:
    """Return whether an old report would make the node seem to work with the newest revision."""
    return (
        member.health is Health.BUSY
        and member.boot is Boot.RUNNING
        and member.last_report is not None
        and member.last_report.revision == newest
    )
