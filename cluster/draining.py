"""Whether a node is emptied before its driver is replaced: one table, between turns.py and plan.py.

turns.py says whose turn it is; here each such verdict passes, or waits for a cordon, for the
consumers to leave, and for the pods of stages after them. `TABLE` has exactly one row for each
`Situation` (a test counts them). A drain is the one thing that a plan does not do in one go: a node
is cordoned, and what runs there then is looked at anew by the next plan, since the scheduler may
have bound one more pod meanwhile.

A node is held from its cordon until the driver works with the new revision, or until its change is
off: the rollout is paused or goes back, the node goes down, nobody asks for eviction any more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

from cluster.actions import Cordon, Demand, Evict
from cluster.consumers import demand_of, evicts
from cluster.hold import lasts, stamp
from cluster.members import Member
from cluster.model.names import closed_label, draining_label, undrained_label
from cluster.model.states import Health, Place, Word
from cluster.moment import believed
from cluster.rollout import Act
from cluster.stagelabels import stages_in_the_way
from cluster.turns import Step, Verdict
from cluster.world import Answer
from nodeside.spec import Driver
from nodeside.spec.fleet import Evict as Policy


class Asked(Word):
    """Whether the Driver evicts at all: `rollout.evict`, and no `upgrade: onReboot`."""

    NO = "eviction is not asked for"
    YES = "eviction is asked for"


class Wish(Word):
    """What the verdict changes."""

    NOTHING = "nothing changes now"
    REPLACE = "a driver that may be in the kernel is replaced"
    GIVE = "the node is new or was rebooted: nothing of the driver is in its kernel"


class Grip(Word):
    FREE = "not held"
    HELD = "held, and cordoned by whomever"
    SLIPPED = "held, and somebody uncordoned it"


class Company(Word):
    NOBODY = "no consumer is there"
    SOMEBODY = "consumers are there"
    STAGES = "consumers are not, but pods of stages are, or may come"
    UNKNOWN = "pods are not known"


class Aim(Word):
    """How the driver is on the node."""

    WORKS = "works"
    FAULTY = "does not work"
    COMING = "has the newest revision, and does not work yet"


class Time(Word):
    """A node is given up on once for a revision: then there is time again."""

    LEFT = "there is time"
    UP = "timeoutSeconds are over"


class Situation(NamedTuple):
    asked: Asked
    wish: Wish
    grip: Grip
    company: Company
    aim: Aim
    time: Time


class Row(NamedTuple):
    asked: tuple[Asked, ...]
    wishes: tuple[Wish, ...]
    grips: tuple[Grip, ...]
    companies: tuple[Company, ...]
    aims: tuple[Aim, ...]
    times: tuple[Time, ...]
    step: Step
    why: str

    def situations(self) -> product[tuple[object, ...]]:
        return product(*self[:6])


NO, YES = ((asked,) for asked in Asked)
NOTHING, REPLACE, GIVE = ((wish,) for wish in Wish)
FREE, HELD, SLIPPED = ((grip,) for grip in Grip)
NOBODY, SOMEBODY, STAGES, UNKNOWN = ((company,) for company in Company)
WORKS, FAULTY, COMING = ((aim,) for aim in Aim)
LEFT, UP = ((time,) for time in Time)

ANY_WISH, ANY_COMPANY, ANY_AIM, ANY_TIME = tuple(Wish), tuple(Company), tuple(Aim), tuple(Time)
CLOSED = HELD + SLIPPED

TABLE: Final = (
    Row(NO, NOTHING + GIVE, FREE, ANY_COMPANY, ANY_AIM, ANY_TIME,
        Step.GO, "eviction is not asked for"),
    Row(NO, REPLACE, FREE, NOBODY + SOMEBODY, ANY_AIM, ANY_TIME,
        Step.GO, "eviction is not asked for"),
    Row(NO, REPLACE, FREE, UNKNOWN, ANY_AIM, ANY_TIME,
        Step.WAIT, "the pods of its stages are not known yet"),
    Row(NO, REPLACE, FREE, STAGES, ANY_AIM, LEFT,
        Step.END_STAGES, "its stages end first"),
    Row(NO, REPLACE, FREE, STAGES, ANY_AIM, UP,
        Step.GIVE_UP, "its stages did not end in time"),
    Row(NO, ANY_WISH, CLOSED, ANY_COMPANY, ANY_AIM, ANY_TIME,
        Step.RELEASE, "eviction is not asked for any more"),
    # Nothing changes now, or nothing that a pod could be in the way of.
    Row(YES, NOTHING + GIVE, FREE, ANY_COMPANY, ANY_AIM, ANY_TIME,
        Step.GO, "there is nothing to be emptied"),
    Row(YES, GIVE, CLOSED, ANY_COMPANY, ANY_AIM, ANY_TIME,
        Step.RELEASE, "it was rebooted, so its kernel has no driver to replace"),
    Row(YES, NOTHING, CLOSED, ANY_COMPANY, COMING, ANY_TIME,
        Step.KEEP_CLOSED, "stays cordoned until the driver works"),
    Row(YES, NOTHING, CLOSED, ANY_COMPANY, WORKS, ANY_TIME,
        Step.RELEASE, "the driver works, and nothing changes now"),
    Row(YES, NOTHING, CLOSED, ANY_COMPANY, FAULTY, ANY_TIME,
        Step.RELEASE, "it is not changed now after all"),
    # Its turn.
    Row(YES, REPLACE, FREE, UNKNOWN, ANY_AIM, ANY_TIME,
        Step.WAIT, "the pods of the cluster are not known yet"),
    Row(YES, REPLACE, FREE, NOBODY, FAULTY + COMING, ANY_TIME,
        Step.GO, "nobody is there, and the driver does not work anyway"),
    Row(YES, REPLACE, FREE, STAGES, FAULTY + COMING, LEFT,
        Step.END_STAGES, "its stages end first"),
    Row(YES, REPLACE, FREE, STAGES, FAULTY + COMING, UP,
        Step.GIVE_UP, "its stages did not end in time"),
    Row(YES, REPLACE, FREE, NOBODY + STAGES, WORKS, ANY_TIME,
        Step.CORDON, "no pod is to find a driver that is being replaced"),
    Row(YES, REPLACE, FREE, SOMEBODY, ANY_AIM, ANY_TIME,
        Step.CORDON, "its consumers have to leave"),
    Row(YES, REPLACE, SLIPPED, ANY_COMPANY, ANY_AIM, ANY_TIME,
        Step.CORDON, "somebody uncordoned it before its driver was replaced"),
    Row(YES, REPLACE, HELD, UNKNOWN, ANY_AIM, LEFT,
        Step.WAIT, "the pods of the cluster are not known yet"),
    Row(YES, REPLACE, HELD, UNKNOWN, ANY_AIM, UP,
        Step.GIVE_UP, "its pods were not known in time"),
    Row(YES, REPLACE, HELD, NOBODY, ANY_AIM, ANY_TIME,
        Step.GO, "nobody is there any more"),
    Row(YES, REPLACE, HELD, SOMEBODY, ANY_AIM, LEFT,
        Step.EVICT, "its consumers have to leave"),
    Row(YES, REPLACE, HELD, SOMEBODY, ANY_AIM, UP,
        Step.GIVE_UP, "its consumers did not leave in time"),
    Row(YES, REPLACE, HELD, STAGES, ANY_AIM, LEFT,
        Step.END_STAGES, "its stages end first"),
    Row(YES, REPLACE, HELD, STAGES, ANY_AIM, UP,
        Step.GIVE_UP, "its stages did not end in time"),
)  # fmt: skip

_ROWS: Final[Mapping[tuple[object, ...], Row]] = {
    situation: row for row in TABLE for situation in row.situations()
}
_ENDS = (Step.RELEASE, Step.GIVE_UP)
_PASSES = (Step.GO, Step.RELEASE, Step.KEEP_CLOSED)


def decide(situation: Situation) -> Row:
    """The one row for a situation."""
    return _ROWS[situation]


def drained(
    verdicts: Iterable[Verdict],
    driver: Driver,
    begun: Mapping[str, str],
    staged: Collection[str],
    now: float,
) -> Iterator[Verdict]:
    """The verdicts with their steps; one that has to wait changes nothing now.

    `begun` are nodes that this very plan cordons, with the reason; `staged` those where pods of
    stages are, or may come.
    """
    policy = evicts(driver)
    for verdict in verdicts:
        stages = stages_in_the_way(verdict, staged)
        if policy is None and not stages and not verdict.member.hold.since:
            yield verdict  # all nodes of nearly all Drivers
            continue
        name = verdict.member.node.name
        row = decide(_situation(verdict, driver, now, stages=stages))
        step, why = (Step.CORDON, begun[name]) if name in begun else (row.step, row.why)
        waits = stages or step not in _PASSES
        yield replace(
            verdict,
            step=step,
            detail=why,
            revision=None if waits else verdict.revision,
            before="" if waits else verdict.before,
        )


def demand(verdicts: Sequence[Verdict], driver: Driver) -> Demand | None:
    """The pods that have to be known: none while nothing changes."""
    policy = evicts(driver)
    if policy is None or not any(_matters(verdict) for verdict in verdicts):
        return None
    return demand_of(policy)


def cordons(verdicts: Iterable[Verdict], driver: str, now: float) -> Iterator[Cordon]:
    """A node is held from now on, if it is not already, and gets another chance."""
    for verdict in verdicts:
        if verdict.step is Step.CORDON:
            hold, node = verdict.member.hold, verdict.member.node
            labels: dict[str, str | None] = {draining_label(driver): hold.since or stamp(now)}
            if hold.given_up:
                labels[undrained_label(driver)] = None
            yield Cordon(driver, node.name, labels, verdict.detail)


def evictions(
    verdicts: Iterable[Verdict], driver: str, answers: Mapping[str, Answer]
) -> Iterator[Evict]:
    """For every consumer that is neither leaving already nor asked a moment ago."""
    for verdict in verdicts:
        if verdict.step is Step.EVICT:
            for each in verdict.member.consumers or ():
                answer = answers.get(each.uid)
                if not each.deleting and not (answer and answer.resting):
                    namespace, _, name = each.name.partition("/")
                    yield Evict(driver, verdict.member.node.name, namespace, name, each.uid)


def hold_labels(verdict: Verdict, driver: str, newest: str) -> dict[str, str | None]:
    """What changes of the labels that hold a node, besides what a cordon brings."""
    hold = verdict.member.hold
    changed: dict[str, str | None] = {}
    if verdict.step in _ENDS and hold.since:
        changed[draining_label(driver)] = None
    if verdict.step is Step.GIVE_UP:
        return changed | {undrained_label(driver): newest}
    if hold.given_up and (hold.given_up != newest or verdict.place is Place.NEWEST):
        changed[undrained_label(driver)] = None
    return changed


def again_in(verdicts: Iterable[Verdict], driver: Driver, newest: str, now: float) -> float:
    """Seconds until the time of a node is up; without end if there is no such node."""
    limit = _limit(driver)
    left = (
        limit - _lasted(verdict.member, driver, now)
        for verdict in verdicts
        if _is_timed(verdict, newest)
    )
    return max(0.0, min(left, default=math.inf))


def _situation(verdict: Verdict, driver: Driver, now: float, *, stages: bool) -> Situation:
    member = verdict.member
    return Situation(
        Asked.NO if evicts(driver) is None else Asked.YES,
        _wish(verdict),
        _grip(member),
        _company(member, stages=stages),
        _aim(verdict),
        _time(verdict, driver, now),
    )


def _wish(verdict: Verdict) -> Wish:
    if verdict.revision is None:
        return Wish.NOTHING
    return Wish.REPLACE if verdict.place in (Place.GOOD, Place.STALE) else Wish.GIVE


def _grip(member: Member) -> Grip:
    if not member.hold.since:
        return Grip.FREE
    return Grip.HELD if member.node.unschedulable else Grip.SLIPPED


def _company(member: Member, *, stages: bool) -> Company:
    if member.consumers is None or (stages and member.stage_pods is None):
        return Company.UNKNOWN
    if member.consumers:
        return Company.SOMEBODY
    return Company.STAGES if stages else Company.NOBODY


def _aim(verdict: Verdict) -> Aim:
    if verdict.member.health is Health.WORKING:
        return Aim.WORKS
    return Aim.COMING if verdict.place is Place.NEWEST else Aim.FAULTY


def _time(verdict: Verdict, driver: Driver, now: float) -> Time:
    member = verdict.member
    once = member.hold.given_up == verdict.revision
    over = not once and _lasted(member, driver, now) >= _limit(driver)
    return Time.UP if over else Time.LEFT


def _limit(driver: Driver) -> float:
    """Seconds; without end if that is wished. Stages have to end where nobody is evicted too."""
    policy = driver.spec.rollout.evict or Policy()
    return policy.timeout_seconds or math.inf


def _is_timed(verdict: Verdict, newest: str) -> bool:
    """Whether it will be given up on when its time is up."""
    hold = verdict.member.hold
    if verdict.step is Step.WAIT:
        return bool(hold.since)
    return verdict.step in (Step.EVICT, Step.END_STAGES) and hold.given_up != newest


def _lasted(member: Member, driver: Driver, now: float) -> float:
    """Seconds since the node is held; if it is not, since its stages were closed."""
    node = member.node
    if member.hold.since:
        return lasts(member.hold.since, now)
    if not node.labelled or closed_label(driver.name) not in node.labels:
        return 0.0
    return now - believed(node.labelled, now)


def _matters(verdict: Verdict) -> bool:
    """Whether the pods of this node decide something, now or when it is its turn."""
    if verdict.member.hold.since:
        return verdict.place is not Place.NEWEST
    replaced = verdict.place in (Place.GOOD, Place.STALE)
    return replaced and verdict.row.act in (Act.IN_TURN, Act.GIVE_NEWEST)
