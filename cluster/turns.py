"""Whose turn it is: the phase of a rollout, its budget, its canaries, and when it is complete.

Pure, between members.py and plan.py. Everything is counted anew from what is observed; what must
outlive a controller stands in the Driver's status (the last good revision, and the casualties of
the newest) and on the nodes (the label `before`, under which assignment the driver worked until we
changed the node).

Amounts: `maxUnavailable` nodes may be without a working driver at a time, whoever's fault it is:
failed ones among them, so with a budget of one the first failure holds the rollout, and nodes that
are down, but for the few machines of a cluster that are dead for long. A percentage is
rounded down, to at least one; 0 changes no working node at all. `maxFailed` is the number of
failures that stops a rollout, at least one: it decides where `maxUnavailable` leaves room for more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from cluster.casualties import Casualty, failures
from cluster.crds import CASUALTY_LIMIT
from cluster.members import Member
from cluster.memory import Recollection
from cluster.rollout import Act, Boot, Health, Phase, Place, Row, Situation, Supply, decide
from cluster.world import Pool
from nodeside.spec import Driver
from nodeside.spec.fleet import Rollout
from nodeside.spec.model import Upgrade

Supplies = Callable[[Pool], Supply]


@dataclass(frozen=True, slots=True)
class Standing:
    """How a rollout stands. `unavailable` and `failed` name nodes; `limit` is maxFailed in nodes.

    `budget` nodes that work may be changed now; `slots` nodes may become canaries (None: all).
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


class Step(Enum):
    """What draining.py makes of a verdict: the first three leave it as it is."""

    GO = "the verdict holds"
    RELEASE = "let go of the node"
    KEEP_CLOSED = "keep the node cordoned"
    CORDON = "hold the node and cordon it"
    WAIT = "wait"
    EVICT = "ask its consumers to leave"
    END_STAGES = "wait for the end of its stages"
    GIVE_UP = "let go of the node until what is in the way is gone"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to a member now. `revision` is what it gets, "" for none; None: no change.

    `before` is the assignment under which it worked until now, "" if it did not. `detail` is why
    `step` is what it is.
    """

    member: Member
    place: Place
    row: Row
    revision: str | None = None
    before: str = ""
    step: Step = Step.GO
    detail: str = ""


def amount(text: str, nodes: int) -> int:
    """A number, or a percentage of `nodes`, rounded down but not to nothing."""
    if not text.endswith("%"):
        return int(text)
    percent = int(text[:-1])
    return max(1, nodes * percent // 100) if percent else 0


def standing(
    all_members: Sequence[Member],
    driver: Driver,
    newest: str,
    good: str,
    supply: Supplies,
    *,
    remembered: Sequence[Casualty] = (),
) -> Standing:
    """Count. `good` is the last good revision so far, "" for none; `remembered` counts too."""
    rollout, nodes = driver.spec.rollout, len(all_members)
    settled = good == newest
    placed = [(member, member.place(newest, good)) for member in all_members]
    absent = _absent([m for m in all_members if m.health is Health.DOWN], nodes)
    unavailable = tuple(
        m.node.name for m, p in placed if _is_unavailable(m, p) or m.node.name in absent
    )
    given = [] if settled else [m for m, p in placed if p is Place.NEWEST and m.before]
    changed = [member for member in given if not member.lost]
    failed = () if settled else failures(given, remembered)
    limit = max(1, min(amount(rollout.max_failed, nodes), CASUALTY_LIMIT))
    allowed = amount(rollout.max_unavailable, nodes)
    candidates = _candidates(placed, driver.spec.upgrade, supply)
    canaries = min(rollout.canary, len(changed) + candidates)
    passed = sum(m.health is Health.WORKING for m in changed)
    begun = sum(bool(m.hold.since) for m, p in placed if p is not Place.NEWEST)
    phase = _phase(rollout, good, settled=settled, tried=passed >= canaries, failed=len(failed),
                   limit=limit)  # fmt: skip
    if phase is not Phase.SETTLED and _is_complete(placed, phase, good, supply):
        return standing(all_members, driver, newest, newest, supply)
    return Standing(
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
        slots=max(0, canaries - len(changed) - begun) if phase is Phase.CANARY else None,
    )


def verdicts(
    all_members: Sequence[Member],
    driver: Driver,
    now: Standing,
    supplies: Mapping[Pool, Supply],
    memory: Recollection[Verdict] | None = None,
) -> tuple[Verdict, ...]:
    """What happens to each member, in the order given.

    `memory` has what was decided in earlier looks of members whose turn it was not.
    """
    upgrade, memory = driver.spec.upgrade, Recollection() if memory is None else memory
    kept = memory.on((now.phase, now.newest, now.good, upgrade, supplies))
    found = []
    for member in all_members:
        verdict = kept.get(member.node.name)
        if verdict is None or verdict.member is not member:
            verdict = kept[member.node.name] = _out_of_turn(member, upgrade, now, supplies)
        found.append(verdict)
    memory.forget({member.node.name for member in all_members})
    changing = [verdict for verdict in found if _may_change(verdict)]
    granted = _grant(changing, now) if changing else ()
    return tuple(
        _verdict(each.member, each.place, each.row, now, turn=True)
        if id(each.member) in granted
        else each
        for each in found
    )


def _out_of_turn(
    member: Member, upgrade: Upgrade, now: Standing, supplies: Mapping[Pool, Supply]
) -> Verdict:
    place, supply = member.place(now.newest, now.good), _supply(member, supplies.__getitem__)
    health = Health.ECHO if _is_echo(member, now.newest) else member.health
    row = decide(Situation(place, now.phase, health, member.boot, upgrade, supply))
    return _verdict(member, place, row, now, turn=False)


def forgiven(every: Sequence[Verdict], now: Standing) -> tuple[Member, ...]:
    """Members whose label `before` goes, since the rollout that harmed them is over.

    Only of those that do not work: it stays on thousands that do, for whom it changes nothing.
    """
    if now.phase is not Phase.SETTLED or any(
        verdict.place is Place.STALE and verdict.member.health is not Health.DOWN
        for verdict in every
    ):
        return ()
    return tuple(
        verdict.member
        for verdict in every
        if verdict.place is Place.NEWEST
        and verdict.member.before
        and verdict.member.health in (Health.BROKEN, Health.DOWN)
    )


def _supply(member: Member, supply: Supplies) -> Supply:
    """What there is for a node: that of its pool, if no other Driver has the module."""
    found = supply(member.pool)
    return Supply.TAKEN if member.taken and found is not Supply.UNSERVED else found


def _grant(changing: Collection[Verdict], now: Standing) -> Collection[int]:
    """Whose turn it is: first those who lose nothing by it, then by name.

    A canary must be able to prove something: a node where the driver worked before. A node whose
    drain has begun keeps its turn, which is counted already. One that was given up on comes last.
    """
    unavailable = frozenset(now.unavailable)
    waiting = [
        (_costs(m, unavailable), bool(m.hold.given_up), m.node.name, m)
        for m, place in ((each.member, each.place) for each in changing)
        if _takes_turn(m, now) and (now.slots is None or _worked_before(m, place))
    ]
    waiting.sort(key=lambda entry: entry[:3])
    budget, slots = now.budget, now.slots
    granted = {id(each.member) for each in changing if each.member.hold.since}
    for costs, _, _, member in waiting:
        if slots == 0 or (costs and budget == 0):
            break
        granted.add(id(member))
        budget -= costs
        slots = None if slots is None else slots - 1
    return granted


def _takes_turn(member: Member, now: Standing) -> bool:
    """Whether it stands in the queue. Not if it could not be drained, until its pods are gone."""
    if member.hold.since:
        return False
    return member.hold.given_up != now.newest or member.is_vacant


def _may_change(verdict: Verdict) -> bool:
    act = verdict.row.act
    if act is Act.GIVE_NEWEST:
        return _disturbs(verdict.member, verdict.place)
    return act in (Act.IN_TURN, Act.IN_TURN_OR_GOOD)


def _disturbs(member: Member, place: Place) -> bool:
    """Whether pods have to leave though the driver does not work: then it is a matter of turns."""
    return place in (Place.GOOD, Place.STALE) and bool(member.consumers is None or member.consumers)


def _costs(member: Member, unavailable: Collection[str]) -> bool:
    """Whether a change makes one more node unavailable."""
    if _is_working(member):
        return True
    occupied = member.consumers is None or bool(member.consumers)
    return occupied and member.node.name not in unavailable


def _verdict(member: Member, place: Place, row: Row, now: Standing, *, turn: bool) -> Verdict:
    match row.act:
        case Act.RELEASE:
            return Verdict(member, place, row, "")
        case Act.IN_TURN | Act.IN_TURN_OR_GOOD if turn:
            return _given(member, place, row, now.newest, counts=True)
        case Act.GIVE_NEWEST if turn or not _disturbs(member, place):
            return _given(member, place, row, now.newest)
        case Act.GIVE_GOOD | Act.IN_TURN_OR_GOOD:
            return _given(member, place, row, now.good)
        case _:
            return Verdict(member, place, row)


def _given(
    member: Member, place: Place, row: Row, revision: str, *, counts: bool = False
) -> Verdict:
    """`counts`: a change of the rollout, which it answers for if the driver worked before.

    What was harmed already stays so until it works again, whatever it is given next.
    """
    before = member.assigned if counts and _worked_before(member, place) else ""
    if _was_harmed(member, place):
        before = member.before
    return Verdict(member, place, row, revision, before)


def _is_echo(member: Member, newest: str) -> bool:
    """Whether, given the newest revision, the node would seem to work by an old report."""
    return (
        member.health is Health.BUSY
        and member.boot is Boot.RUNNING
        and member.report is not None
        and member.report.revision == newest
    )


def _is_working(member: Member) -> bool:
    return member.health is Health.WORKING


def _worked_before(member: Member, place: Place) -> bool:
    """Whether a failure after a change would be the change's."""
    rebooted = member.boot is Boot.FRESH and member.was_ready
    return _is_working(member) or _was_harmed(member, place) or rebooted


def _was_harmed(member: Member, place: Place) -> bool:
    """Whether it does not work since an earlier change of ours, which it still has, or which was to
    something that nobody knows any more."""
    changed = place is Place.STALE or (place is Place.MOVED and member.at is None)
    return changed and bool(member.before) and not _is_working(member)


def _absent(down: Sequence[Member], nodes: int) -> frozenset[str]:
    """Nodes that are down and count against the budget: those that may be rebooting.

    In every large cluster some machine is dead, and holds no rollout up; nor does one that went
    down in the middle of its change and does not come back. But more than one in a hundred (or than
    one) at the same time are an outage: then all count, and what is left is not touched.
    """
    dead = {m.node.name for m in down if m.lost or not (m.node.ready_since or m.before)}
    is_outage = len(dead) > max(1, nodes // 100)
    return frozenset(m.node.name for m in down if is_outage or m.node.name not in dead)


def _is_unavailable(member: Member, place: Place) -> bool:
    """Whether it counts against the budget: by our doing, or because it is just coming back.

    One that failed without our doing does not: it would block a correction for ever. One that
    failed in a rollout that is over is forgiven: see `forgiven`. One that is held is cordoned until
    that is undone. Of one that is down `_absent` decides besides.
    """
    if member.lost:
        return False
    if member.hold.since or member.hold.ending:
        return True
    if member.health is Health.WORKING:
        return False
    if member.before and place in (Place.STALE, Place.NEWEST):
        return True
    return member.health is Health.BUSY and bool(member.before or member.report is not None)


def _candidates(placed: Iterable[tuple[Member, Place]], upgrade: Upgrade, supply: Supplies) -> int:
    """How many nodes could still become canaries: at once, or with `onReboot` one day."""
    one_day = upgrade is Upgrade.ON_REBOOT
    places = (Place.GOOD, Place.STALE, Place.MOVED) if one_day else (Place.GOOD, Place.STALE)
    return sum(
        place in places
        and _supply(member, supply) is Supply.SERVED
        and (one_day or _worked_before(member, place))
        for member, place in placed
    )


def _phase(
    rollout: Rollout, good: str, *, settled: bool, tried: bool, failed: int, limit: int
) -> Phase:
    if settled:
        return Phase.SETTLED
    if not good:
        return Phase.HELD if rollout.paused else Phase.FIRST
    if failed >= (limit if tried else 1):
        return Phase.STOPPED
    if rollout.paused:
        return Phase.PAUSED
    return Phase.OPEN if tried else Phase.CANARY


def _is_complete(
    placed: Sequence[tuple[Member, Place]], phase: Phase, good: str, supply: Supplies
) -> bool:
    """Whether the newest revision has proven itself.

    The very first does so with the first node where it works: anything better than nothing is good.
    Later ones when every node that is up has it and has said how it went.
    """
    newest = [member for member, place in placed if place is Place.NEWEST]
    if not any(_is_working(member) for member in newest):
        return False
    if not good:
        return True
    if phase not in (Phase.OPEN, Phase.PAUSED):
        return False
    if any(member.health is Health.BUSY for member in newest):
        return False
    return all(
        place is Place.NEWEST
        or member.health is Health.DOWN
        or supply(member.pool) is Supply.UNSERVED
        for member, place in placed
    )
