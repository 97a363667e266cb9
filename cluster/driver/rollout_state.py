"""The state of a rollout: its phase, the unavailable nodes, and how many more nodes may change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from cluster.driver.casualties import Casualty, nodes_that_count_as_failed
from cluster.driver.nodes import DriverNode
from cluster.model.retries import Retries
from cluster.model.snapshot import Pool
from cluster.model.states import Boot, Health, Phase, Place, Supply
from cluster.model.status_schema import CASUALTY_LIMIT
from nodeside.protocol.node_status import WAITS_FOR_DRIVER
from nodeside.spec import Driver
from nodeside.spec.fleet import Rollout
from nodeside.spec.model import Upgrade

Supplies = Callable[[Pool], Supply]
CANARIES_FIRST = (Phase.CANARY, Phase.FIRST_CANARY)


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The state of a rollout. `unavailable` and `failed` name nodes.

    `nodes`, `allowed` (maxUnavailable), `limit` (maxFailed) and `canaries` are numbers of nodes.
    `budget` is how many working nodes may change now; `slots` is how many nodes may become canaries
    (None: no limit). `trying` names the canaries that the others wait for.
    """

    phase: Phase
    newest: str
    good: str
    nodes: int
    allowed: int
    limit: int
    canaries: int
    unavailable: tuple[str, ...]
    failed: tuple[str, ...]
    budget: int
    slots: int | None
    trying: tuple[str, ...] = ()


def parse_amount(text: str, nodes: int) -> int:
    """Return a number, or a percentage of `nodes` rounded down to at least one; 0% is 0."""
    if not text.endswith("%"):
        return int(text)
    percent = int(text[:-1])
    return max(1, nodes * percent // 100) if percent else 0


def rollout_state(
    all_members: Sequence[DriverNode],
    driver: Driver,
    newest: str,
    good: str,
    supply: Supplies,
    *,
    remembered: Sequence[Casualty] = (),
    away: Collection[str] = (),
    retries: Retries = (),
    blocked: Collection[str] = (),
) -> RolloutState:
    """Return the state. `good` is the last good revision so far, "" for none.

    The casualties that the status `remembered` count as failed too; failures before an order to
    retry do not. Nodes that are `away` count as unavailable: a driver named in `after` is being
    changed there. On nodes that are `blocked`, a driver named in `after` failed or is not wanted.
    """
    rollout, nodes = driver.spec.rollout, len(all_members)
    settled = good == newest
    placed = [(member, member.place(newest, good)) for member in all_members]
    down = _down_nodes_that_count([m for m in all_members if m.health is Health.DOWN], nodes)
    unavailable = tuple(
        m.node.name
        for m, p in placed
        if _is_unavailable(m, p) or m.node.name in down or m.node.name in away
    )
    # Without a good revision, every node that has the newest tries it.
    assigned = (
        []
        if settled
        else [m for m, p in placed if p is Place.NEWEST and (m.worked_with or not good)]
    )
    changed = [member for member in assigned if not member.is_given_up]
    if not good and blocked:
        assigned = [member for member in assigned if not _tries_nothing(member, blocked)]
        changed = [member for member in changed if not _tries_nothing(member, blocked)]
    may_have_failed = not settled and (assigned or remembered)
    failed = nodes_that_count_as_failed(assigned, remembered, retries) if may_have_failed else ()
    limit = max(1, min(parse_amount(rollout.max_failed, nodes), CASUALTY_LIMIT))
    allowed = parse_amount(rollout.max_unavailable, nodes)
    candidates = (
        _count_candidates(placed, driver.spec.upgrade, supply)
        if good
        else _count_first_candidates(placed, supply)
    )
    canaries = min(rollout.canary, len(changed) + candidates)
    passed = sum(m.health is Health.WORKING for m in changed)
    begun = [m.node.name for m, p in placed if m.drain.since and p is not Place.NEWEST]
    tried = passed >= canaries and (passed > 0 or not rollout.canary or bool(good))
    everywhere = len(assigned) == nodes
    phase = (
        _decide_phase(rollout, settled=settled, tried=tried, failed=len(failed), limit=limit)
        if good
        else _decide_first_phase(rollout, tried=tried, everywhere=everywhere, failed=len(failed))
    )
    if phase is not Phase.SETTLED and _is_complete(placed, phase, good, supply, tried=tried):
        # The newest revision becomes the good one.
        return rollout_state(all_members, driver, newest, newest, supply, away=away)
    return RolloutState(
        phase=phase,
        newest=newest,
        good=good,
        nodes=nodes,
        allowed=allowed,
        limit=limit,
        canaries=canaries,
        unavailable=unavailable,
        failed=failed,
        budget=max(0, allowed - len(unavailable)),
        slots=max(0, canaries - len(changed) - len(begun)) if phase in CANARIES_FIRST else None,
        trying=(*(m.node.name for m in changed if not is_working(m)), *begun)
        if phase in CANARIES_FIRST
        else (),
    )


def _down_nodes_that_count(down: Sequence[DriverNode], nodes: int) -> frozenset[str]:
    """Return the nodes that are down and count against the budget: those that may be rebooting.

    Every large cluster has some dead machines, and these must not hold up a rollout. The same goes
    for a machine that went down during its change and does not come back. But if more than 1% of
    the nodes, and more than one, are dead at the same time, it is an outage. Then all of them
    count, so that the remaining nodes are not touched.
    """
    dead = {m.node.name for m in down if m.is_given_up or not (m.node.ready_since or m.worked_with)}
    is_outage = len(dead) > max(1, nodes // 100)
    return frozenset(m.node.name for m in down if is_outage or m.node.name not in dead)


def _is_unavailable(member: DriverNode, place: Place) -> bool:
    """Return whether a node counts against the budget.

    It counts if our change took it out of service, or if the driver is coming up there again. A
    node that failed on its own does not count, since it would block a correction indefinitely. Nor
    does a node that waits for another driver, which may never be ready. A node that failed in a
    completed rollout no longer counts (`nodes_to_forgive`). A node that is drained counts until it
    is uncordoned. For a node that is down, `_down_nodes_that_count` decides as well.
    """
    if member.is_given_up:
        return False
    if member.drain.since or member.drain.ending:
        return True
    if member.health is Health.WORKING:
        return False
    if member.worked_with and place in (Place.STALE, Place.NEWEST):
        return True
    busy = member.health is Health.BUSY and not waits_for_driver(member)
    return busy and bool(member.worked_with or member.last_report is not None)


def _count_candidates(
    placed: Iterable[tuple[DriverNode, Place]], upgrade: Upgrade, supply: Supplies
) -> int:
    """Return how many nodes could still become canaries: now, or with `onReboot` eventually."""
    eventually = upgrade is Upgrade.ON_REBOOT
    places = (Place.GOOD, Place.STALE, Place.MOVED) if eventually else (Place.GOOD, Place.STALE)
    return sum(
        place in places
        and supply_of(member, supply) is Supply.SERVED
        and (eventually or worked_before(member, place))
        for member, place in placed
    )


def _count_first_candidates(placed: Iterable[tuple[DriverNode, Place]], supply: Supplies) -> int:
    """Return how many nodes could become canaries of the first rollout."""
    return sum(
        place is not Place.NEWEST
        and member.health is not Health.DOWN
        and supply_of(member, supply) is Supply.SERVED
        for member, place in placed
    )


def _tries_nothing(member: DriverNode, blocked: Collection[str]) -> bool:
    """Return whether a node waits for another driver, which failed there or is not wanted."""
    return member.node.name in blocked and waits_for_driver(member)


def _decide_first_phase(rollout: Rollout, *, tried: bool, everywhere: bool, failed: int) -> Phase:
    """Return the phase while no revision was ever good.

    `tried`: as many nodes work as there are to be canaries. A node that was not chosen may say so,
    so any failure counts for more. `everywhere`: all nodes have it, so that none is kept from it.
    """
    if failed and rollout.canary and not everywhere:
        return Phase.FIRST_STOPPED
    if rollout.paused:
        return Phase.HELD
    return Phase.FIRST if tried or everywhere else Phase.FIRST_CANARY


def _decide_phase(
    rollout: Rollout, *, settled: bool, tried: bool, failed: int, limit: int
) -> Phase:
    if settled:
        return Phase.SETTLED
    if failed >= (limit if tried else 1):
        return Phase.STOPPED
    if rollout.paused:
        return Phase.PAUSED
    return Phase.OPEN if tried else Phase.CANARY


def _is_complete(
    placed: Sequence[tuple[DriverNode, Place]],
    phase: Phase,
    good: str,
    supply: Supplies,
    *,
    tried: bool,
) -> bool:
    """Return whether the newest revision has proven itself.

    The very first revision has proven itself as soon as it works on its canaries, or without any
    on one node, since there was nothing before it. A later one has when every node that is up has
    it and has reported the result.
    """
    newest = [member for member, place in placed if place is Place.NEWEST]
    if not any(is_working(member) for member in newest):
        return False
    if not good:
        return tried and phase is not Phase.FIRST_STOPPED
    if phase not in (Phase.OPEN, Phase.PAUSED):
        return False
    if any(member.health is Health.BUSY and not waits_for_driver(member) for member in newest):
        return False
    return all(
        place is Place.NEWEST
        or member.health is Health.DOWN
        or supply(member.pool) is Supply.UNSERVED
        for member, place in placed
    )


def supply_of(member: DriverNode, supply: Supplies) -> Supply:
    """Return the supply of a node: that of its pool, or CONFLICT if another Driver has a module."""
    of_pool = supply(member.pool)
    return (
        Supply.CONFLICT
        if member.has_module_conflict and of_pool is not Supply.UNSERVED
        else of_pool
    )


def is_working(member: DriverNode) -> bool:
    return member.health is Health.WORKING


def waits_for_driver(member: DriverNode) -> bool:
    """Return whether the node waits for a driver named in `after`, and we have not changed it."""
    report = member.current_report
    return report is not None and report.reason == WAITS_FOR_DRIVER and not member.worked_with


def worked_before(member: DriverNode, place: Place) -> bool:
    """Return whether the driver worked, so that a failure after a change is due to the change.

    A node that an earlier change broke counts, and a node where the driver worked until a reboot.
    """
    rebooted = member.boot is Boot.REBOOTED and member.was_ready
    return is_working(member) or was_broken_by_change(member, place) or rebooted


def was_broken_by_change(member: DriverNode, place: Place) -> bool:
    """Return whether an earlier change of ours broke the node.

    The node still has that revision, or one that is no longer known.
    """
    changed = place is Place.STALE or (place is Place.MOVED and member.at is None)
    return changed and bool(member.worked_with) and not is_working(member)
