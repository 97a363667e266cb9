"""Which nodes a Driver would change, in which order, and what holds its device there. Pure.

The order is that of driver/update.py. Builds that run, or are still to run, count as done. A plan
made now gives the nodes that change first; the update table gives what happens to the others then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby

from cluster.driver.nodes import DriverNode, NodeCache
from cluster.driver.pools import pool_of
from cluster.driver.rollout_state import RolloutState, is_working, supply_of
from cluster.driver.status.messages import revision_name, toolkit_message
from cluster.driver.update import NodeDecision
from cluster.driver.update_table import Act, UpdateRow, UpdateSituation, decide_update
from cluster.model.names import LEAVE_MODULES
from cluster.model.snapshot import Pool, Snapshot
from cluster.model.states import BuildProgress, Health, Phase, Place, Supply
from cluster.options.conflicts import WAY_OUT
from cluster.options.drain.pods import consumers_by_node, eviction_policy
from cluster.plan.context.context import DriverContext
from cluster.plan.context.rollout import RolloutPlan
from nodeside.spec import Driver
from nodeside.spec.fleet import Evict
from nodeside.spec.model import UnloadPolicy, Upgrade

_AFTER_CANARY = {Phase.CANARY: Phase.OPEN, Phase.FIRST_CANARY: Phase.FIRST}
_IN_TURN = (Act.IN_TURN, Act.IN_TURN_OR_GOOD)


class Turn(Enum):
    """When a node changes, in the order in which they are shown."""

    AT_ONCE = "at once"
    CANARY = "canary"
    AFTER_CANARY = "next"
    IN_TURN = "in turn"
    AT_REBOOT = "at reboot"
    WAITS = "waits"
    LEAVES = "leaves"


_TURNS = tuple(Turn)
CHANGING = (Turn.AT_ONCE, Turn.CANARY, Turn.AFTER_CANARY, Turn.IN_TURN, Turn.AT_REBOOT)
UNLOADED = "its modules are unloaded"


@dataclass(frozen=True)
class NodeTurn:
    """A node, and when it changes. `why` says more, "" for nothing.

    `loaded`: whether the driver's modules are loaded there.
    """

    turn: Turn
    pool: Pool
    node: str
    why: str = ""
    loaded: bool = False

    @property
    def group(self) -> tuple[object, ...]:
        """The sort key of the group that the node is shown in."""
        pool = self.pool
        place = pool.os_version, pool.kernel, pool.architecture
        return _TURNS.index(self.turn), place, self.why


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a pool with the same turn, in their order.

    `loaded`: whether the driver's modules are loaded on any of them. `pods` hold the device, by
    node; None: unknown.
    """

    turn: Turn
    pool: Pool
    nodes: tuple[str, ...]
    why: str = ""
    loaded: bool = False
    pods: Mapping[str, tuple[str, ...]] | None = None


def node_groups(
    before: DriverContext | None, after: DriverContext, rollout: RolloutPlan
) -> tuple[NodeGroup, ...]:
    """Return the nodes on which something happens, or is awaited, after an apply."""
    turns = [*_turns_of_members(after, rollout), *_turns_of_others(before, after)]
    turns.sort(key=lambda each: each.group)  # it keeps the order within a group
    drivers = [context.driver for context in (before, after) if context is not None]
    pods = pods_on_nodes(after.snapshot, drivers)
    groups = []
    for _, found in groupby(turns, key=lambda each: each.group):
        members = list(found)
        first = members[0]
        names = tuple(each.node for each in members)
        held = None if pods is None else {name: pods[name] for name in names if name in pods}
        loaded = any(each.loaded for each in members)
        groups.append(NodeGroup(first.turn, first.pool, names, first.why, loaded, held))
    return tuple(groups)


def as_if_built(context: DriverContext) -> RolloutPlan:
    """Return the rollout as it is once the builds that run, or are to run, are done."""
    newest, supplies = context.revisions.newest, dict(context.supply.by_pool)
    for at, state in context.supply.builds.items():
        if at.revision == newest and state.progress is BuildProgress.RUNNING:
            supplies[at.pool] = Supply.SERVED
    return replace(context.rollout, supplies=supplies, memory=NodeCache(), unbuilt={})


def _turns_of_members(context: DriverContext, rollout: RolloutPlan) -> Iterator[NodeTurn]:
    """Yield the members that have not the newest revision, those that do not work first."""
    decisions = sorted(
        rollout.decisions_before_drain, key=lambda d: (is_working(d.member), d.member.node.name)
    )
    for decision in decisions:
        if decision.place is not Place.NEWEST:
            member = decision.member
            turn, why = _turn_of(context, rollout, decision)
            yield NodeTurn(turn, member.pool, member.node.name, why, _is_loaded(member))


def _is_loaded(member: DriverNode) -> bool:
    return is_working(member) or (member.was_ready and member.current_report is not None)


def _turn_of(
    context: DriverContext, rollout: RolloutPlan, decision: NodeDecision
) -> tuple[Turn, str]:
    state, row = rollout.state, decision.row
    if decision.revision == state.newest:
        if row.act is Act.AS_CANARY:
            return Turn.CANARY, ""
        if row.act in _IN_TURN:
            return Turn.CANARY if state.phase is Phase.CANARY else Turn.IN_TURN, ""
        return Turn.AT_ONCE, "" if decision.place is Place.UNASSIGNED else row.why
    if decision.revision:
        good = revision_name(
            decision.revision, context.revisions.drivers[decision.revision].spec.version
        )
        if state.phase in (Phase.CANARY, Phase.OPEN):
            return Turn.IN_TURN, f"gets {good} at once"
        return Turn.WAITS, f"gets {good} at once: {row.why}"
    return _turn_without_change(
        context, state, decision, _row_after_canary(context, rollout, decision)
    )


def _row_after_canary(
    context: DriverContext, rollout: RolloutPlan, decision: NodeDecision
) -> UpdateRow:
    member, phase = decision.member, rollout.state.phase
    return decide_update(
        UpdateSituation(
            decision.place,
            _AFTER_CANARY.get(phase, phase),
            member.health,
            member.boot,
            context.driver.spec.upgrade,
            supply_of(member, rollout.supplies.__getitem__),
        )
    )


def _turn_without_change(
    context: DriverContext, state: RolloutState, decision: NodeDecision, row: UpdateRow
) -> tuple[Turn, str]:
    """Return the turn of a node that a plan made now leaves as it is. `row` holds afterwards."""
    member = decision.member
    if row.act in _IN_TURN or (row.act is Act.GIVE_NEWEST and member.drain.may_have_pods):
        if state.allowed == 0 and is_working(member):
            return Turn.WAITS, "maxUnavailable is 0: a node where the driver works stays as it is"
        return Turn.IN_TURN, ""
    if row.act in (Act.GIVE_NEWEST, Act.GIVE_GOOD):
        is_first = state.phase is Phase.FIRST_CANARY
        return Turn.AFTER_CANARY, "all of them, once the canaries work" if is_first else row.why
    if row.upgrades == (Upgrade.ON_REBOOT,):
        return Turn.AT_REBOOT, ""
    if Supply.UNSERVED in row.supplies and len(row.supplies) == 1:
        return Turn.WAITS, _why_unserved(context, member.pool) or row.why
    return Turn.WAITS, row.why


def _why_unserved(context: DriverContext, pool: Pool) -> str:
    resolution = context.toolkits.resolutions[pool]
    build = context.supply.newest_builds.get(pool)
    if build is not None and build.progress is BuildProgress.REFUSED:
        return f"the driver does not build for this kernel: {build.words}"
    return "" if resolution.image else toolkit_message(resolution)


def _turns_of_others(before: DriverContext | None, after: DriverContext) -> Iterator[NodeTurn]:
    """Yield the nodes that the Driver leaves, and those that an older Driver keeps from it."""
    members = {member.node.name for member in after.members}
    nodes = after.snapshot.nodes
    contested: dict[str, str] = {}
    for rival, names in after.nodes.contested_nodes.items():
        why = f"driver {rival} came first and has a module of the same name; {WAY_OUT}"
        contested |= dict.fromkeys(names - members, why)
    yield from (
        NodeTurn(Turn.WAITS, pool_of(nodes[name]), name, contested[name])
        for name in sorted(contested)
        if name in nodes
    )
    for member in before.members if before is not None else ():
        name = member.node.name
        if name not in members and name not in contested:
            why, loaded = _fate_of_modules(after, member), _is_loaded(member)
            yield NodeTurn(Turn.LEAVES, member.pool, name, why, loaded)


def _fate_of_modules(after: DriverContext, member: DriverNode) -> str:
    """Return what becomes of the modules on a node that the Driver leaves."""
    if after.resource.leave_modules:
        return f"its modules stay loaded: annotation {LEAVE_MODULES}"
    if after.driver.spec.unload.policy is UnloadPolicy.NEVER:
        return "its modules stay loaded until a reboot: unload.policy is never"
    if member.health is Health.DOWN:
        return "the node is not ready, and keeps its modules until a reboot"
    return UNLOADED if _is_loaded(member) else ""


# --- pods ----------------------------------------------------------------------------------------


def holder_policies(drivers: Iterable[Driver]) -> Sequence[Evict]:
    """Return the policies that match the pods that hold the devices of Drivers.

    A Driver without `rollout.evict` counts as if it had an empty one.
    """
    found = []
    for driver in drivers:
        rollout = replace(driver.spec.rollout, evict=driver.spec.rollout.evict or Evict())
        spec = replace(driver.spec, rollout=rollout, upgrade=Upgrade.LIVE)
        policy = eviction_policy(replace(driver, spec=spec))
        if policy is not None and (policy.resources or policy.selector):
            found.append(policy)
    return found


def pods_on_nodes(
    snapshot: Snapshot, drivers: Iterable[Driver]
) -> Mapping[str, tuple[str, ...]] | None:
    """Return the pods that hold a device of these Drivers, by node; None if they are unknown."""
    policies = holder_policies(drivers)
    found = consumers_by_node(snapshot, policies) if policies else None
    if found is None:
        return None
    return {node: tuple(sorted(pod.name for pod in pods)) for node, pods in found.items()}
