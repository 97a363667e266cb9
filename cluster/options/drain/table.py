"""The drain table: one step for every situation of a node that pods may have to leave."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import product
from typing import Final, NamedTuple

from cluster.model.states import FastEnum


class DrainStep(Enum):
    """The drain step of a decision; the first three leave the decision unchanged."""

    GO = "the decision holds"
    RELEASE = "release the node"
    KEEP_CLOSED = "keep the node cordoned"
    CORDON = "hold the node and cordon it"
    WAIT = "wait"
    EVICT = "ask its consumers to leave"
    END_STAGES = "wait for the end of its stages"
    HOLD_FOR_STAGES = "hold the node, and wait for the end of its stages"
    GIVE_UP = "release the node until its pods are gone"


ENDS_STAGES: Final = (DrainStep.END_STAGES, DrainStep.HOLD_FOR_STAGES)


class Eviction(FastEnum):
    """Whether the Driver evicts at all: `rollout.evict` is set, without `upgrade: onReboot`."""

    NO = "the Driver does not evict pods"
    YES = "the Driver evicts pods"


class Change(FastEnum):
    """What the decision changes."""

    NOTHING = "nothing changes now"
    REPLACE = "a driver that may be in the kernel is replaced"
    GIVE = "the node is new or was rebooted: nothing of the driver is in its kernel"


class Hold(FastEnum):
    """Whether the Driver holds the node."""

    FREE = "not held"
    HELD = "held and cordoned, by us or by somebody else"
    SLIPPED = "held and not cordoned: somebody uncordoned it, or the Driver does not evict pods"


class Occupants(FastEnum):
    """Which pods are on the node that may have to leave."""

    NOBODY = "no consumer is there"
    SOMEBODY = "consumers are there"
    STAGES = "no consumer is there, but pods of stages are there or may appear"
    UNKNOWN = "its pods are not known"


class DriverState(FastEnum):
    """The state of the driver on the node."""

    WORKS = "works"
    FAULTY = "does not work"
    COMING = "has the newest revision, and does not work yet"


class Time(FastEnum):
    """Whether the timeout has passed. A node is given up on once per revision; then it is LEFT."""

    LEFT = "there is time left"
    UP = "timeoutSeconds have passed"


class DrainSituation(NamedTuple):
    eviction: Eviction
    change: Change
    hold: Hold
    occupants: Occupants
    state: DriverState
    time: Time


class DrainRow(NamedTuple):
    evictions: tuple[Eviction, ...]
    changes: tuple[Change, ...]
    holds: tuple[Hold, ...]
    occupants: tuple[Occupants, ...]
    states: tuple[DriverState, ...]
    times: tuple[Time, ...]
    step: DrainStep
    why: str

    def situations(self) -> product[tuple[object, ...]]:
        return product(*self[:6])


NO, YES = ((eviction,) for eviction in Eviction)
ANY_EVICTION = NO + YES


NOTHING, REPLACE, GIVE = ((change,) for change in Change)


FREE, ON_HOLD, SLIPPED = ((hold,) for hold in Hold)


NOBODY, SOMEBODY, STAGES, UNKNOWN = ((occupants,) for occupants in Occupants)


WORKS, NOT_WORKING, COMING = ((state,) for state in DriverState)


LEFT, TIME_UP = ((time,) for time in Time)


ANY_CHANGE, ANY_OCCUPANTS = tuple(Change), tuple(Occupants)
ANY_STATE, ANY_TIME = tuple(DriverState), tuple(Time)


ANY_HOLD = ON_HOLD + SLIPPED


DRAIN_TABLE: Final = (
    DrainRow(NO, NOTHING + GIVE, FREE, ANY_OCCUPANTS, ANY_STATE, ANY_TIME,
        DrainStep.GO, "the Driver does not evict pods"),
    DrainRow(NO, REPLACE, FREE, NOBODY + SOMEBODY, ANY_STATE, ANY_TIME,
        DrainStep.GO, "the Driver does not evict pods"),
    DrainRow(NO, REPLACE, FREE, UNKNOWN, ANY_STATE, ANY_TIME,
        DrainStep.WAIT, "the pods of its stages are not known yet"),
    DrainRow(NO, REPLACE, FREE, STAGES, WORKS, ANY_TIME,
        DrainStep.HOLD_FOR_STAGES, "its stages end first"),
    DrainRow(ANY_EVICTION, REPLACE, FREE, STAGES, NOT_WORKING + COMING, LEFT,
        DrainStep.END_STAGES, "its stages end first"),
    DrainRow(ANY_EVICTION, REPLACE, FREE, STAGES, NOT_WORKING + COMING, TIME_UP,
        DrainStep.GIVE_UP, "its stages did not end in time"),
    DrainRow(NO, REPLACE, ANY_HOLD, UNKNOWN, ANY_STATE, LEFT,
        DrainStep.WAIT, "the pods of its stages are not known yet"),
    DrainRow(NO, REPLACE, ANY_HOLD, UNKNOWN, ANY_STATE, TIME_UP,
        DrainStep.GIVE_UP, "the pods of its stages were not known in time"),
    DrainRow(NO, REPLACE, ANY_HOLD, STAGES, ANY_STATE, LEFT,
        DrainStep.HOLD_FOR_STAGES, "its stages end first"),
    DrainRow(NO, REPLACE, ANY_HOLD, STAGES, ANY_STATE, TIME_UP,
        DrainStep.GIVE_UP, "its stages did not end in time"),
    DrainRow(NO, REPLACE, ANY_HOLD, NOBODY + SOMEBODY, ANY_STATE, ANY_TIME,
        DrainStep.RELEASE, "nothing of its stages is left"),
    DrainRow(NO, NOTHING + GIVE, ANY_HOLD, ANY_OCCUPANTS, ANY_STATE, ANY_TIME,
        DrainStep.RELEASE, "nothing is replaced now"),
    # Nothing changes now, or no pod can be in the way of the change.
    DrainRow(YES, NOTHING + GIVE, FREE, ANY_OCCUPANTS, ANY_STATE, ANY_TIME,
        DrainStep.GO, "there is nothing to drain"),
    DrainRow(YES, GIVE, ANY_HOLD, ANY_OCCUPANTS, ANY_STATE, ANY_TIME,
        DrainStep.RELEASE, "it was rebooted, so its kernel has no driver to replace"),
    DrainRow(YES, NOTHING, ANY_HOLD, ANY_OCCUPANTS, COMING, ANY_TIME,
        DrainStep.KEEP_CLOSED, "stays cordoned until the driver works"),
    DrainRow(YES, NOTHING, ANY_HOLD, ANY_OCCUPANTS, WORKS, ANY_TIME,
        DrainStep.RELEASE, "the driver works, and nothing changes now"),
    DrainRow(YES, NOTHING, ANY_HOLD, ANY_OCCUPANTS, NOT_WORKING, ANY_TIME,
        DrainStep.RELEASE, "its change is called off"),
    # Its turn.
    DrainRow(YES, REPLACE, FREE, UNKNOWN, ANY_STATE, ANY_TIME,
        DrainStep.WAIT, "the pods of the cluster are not known yet"),
    DrainRow(YES, REPLACE, FREE, NOBODY, NOT_WORKING + COMING, ANY_TIME,
        DrainStep.GO, "it has no consumers, and the driver does not work anyway"),
    DrainRow(YES, REPLACE, FREE, NOBODY + STAGES, WORKS, ANY_TIME,
        DrainStep.CORDON, "no pod may start while its driver is replaced"),
    DrainRow(YES, REPLACE, FREE, SOMEBODY, ANY_STATE, ANY_TIME,
        DrainStep.CORDON, "its consumers have to leave"),
    DrainRow(YES, REPLACE, SLIPPED, ANY_OCCUPANTS, ANY_STATE, ANY_TIME,
        DrainStep.CORDON, "somebody uncordoned it before its driver was replaced"),
    DrainRow(YES, REPLACE, ON_HOLD, UNKNOWN, ANY_STATE, LEFT,
        DrainStep.WAIT, "the pods of the cluster are not known yet"),
    DrainRow(YES, REPLACE, ON_HOLD, UNKNOWN, ANY_STATE, TIME_UP,
        DrainStep.GIVE_UP, "its pods were not known in time"),
    DrainRow(YES, REPLACE, ON_HOLD, NOBODY, ANY_STATE, ANY_TIME,
        DrainStep.GO, "its consumers are gone"),
    DrainRow(YES, REPLACE, ON_HOLD, SOMEBODY, ANY_STATE, LEFT,
        DrainStep.EVICT, "its consumers have to leave"),
    DrainRow(YES, REPLACE, ON_HOLD, SOMEBODY, ANY_STATE, TIME_UP,
        DrainStep.GIVE_UP, "its consumers did not leave in time"),
    DrainRow(YES, REPLACE, ON_HOLD, STAGES, ANY_STATE, LEFT,
        DrainStep.END_STAGES, "its stages end first"),
    DrainRow(YES, REPLACE, ON_HOLD, STAGES, ANY_STATE, TIME_UP,
        DrainStep.GIVE_UP, "its stages did not end in time"),
)  # fmt: skip


_ROWS: Final[Mapping[tuple[object, ...], DrainRow]] = {
    situation: row for row in DRAIN_TABLE for situation in row.situations()
}


def decide_drain(situation: DrainSituation) -> DrainRow:
    """Return the one row for a situation."""
    return _ROWS[situation]
