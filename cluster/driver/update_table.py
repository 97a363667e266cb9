"""The update table: one action for every situation of a node. The whole policy is in this table.

`UPDATE_TABLE` has exactly one row for each `UpdateSituation` (a test counts them). So the order of
the rows does not matter, and one row answers the question "why was this node not changed".

Terms: the *newest* revision is that of the current Driver spec. The *good* revision is the last one
that completed a rollout. Relabelling a node is the only act: it moves the node to the DaemonSet of
another pool or revision. update.py decides which nodes may change now; plan/assign.py labels them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Final, NamedTuple

from cluster.model.states import Boot, Health, Phase, Place, Supply
from nodeside.spec.model import Upgrade


class Act(Enum):
    KEEP = "leave it as it is"
    RELEASE = "assign it to nothing"
    GIVE_GOOD = "assign the good revision"
    GIVE_NEWEST = "assign the newest revision"
    IN_TURN = "assign the newest revision when it is its turn"
    IN_TURN_OR_GOOD = "assign the newest revision if it is its turn, else the good one"
    AS_CANARY = "assign the newest revision if the node is chosen as a canary"


class UpdateSituation(NamedTuple):
    place: Place
    phase: Phase
    health: Health
    boot: Boot
    upgrade: Upgrade
    supply: Supply


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """A row of the table. `why` is shown to users: "node n1: <why>"."""

    places: tuple[Place, ...]
    phases: tuple[Phase, ...]
    healths: tuple[Health, ...]
    boots: tuple[Boot, ...]
    upgrades: tuple[Upgrade, ...]
    supplies: tuple[Supply, ...]
    act: Act
    why: str

    def situations(self) -> product[tuple[object, ...]]:
        return product(
            self.places, self.phases, self.healths, self.boots, self.upgrades, self.supplies
        )


UNASSIGNED, MOVED, GOOD, STALE, NEWEST = ((place,) for place in Place)
HELD, FIRST, FIRST_CANARY, FIRST_STOPPED, SETTLED, CANARY, OPEN, PAUSED, STOPPED = (
    (phase,) for phase in Phase
)
WORKING, BUSY, BROKEN, OUTDATED, DOWN = ((health,) for health in Health)
RUNNING, REBOOTED = ((boot,) for boot in Boot)
LIVE, ON_REBOOT = ((upgrade,) for upgrade in Upgrade)
SERVED, UNSERVED, ONLY_LAST_GOOD, CONFLICT = ((supply,) for supply in Supply)

ANY_PHASE, ANY_HEALTH = tuple(Phase), tuple(Health)
ANY_BOOT, ANY_UPGRADE = tuple(Boot), tuple(Upgrade)
UNDER_WAY = CANARY + OPEN
HALTED = PAUSED + STOPPED
WITHOUT_GOOD = HELD + FIRST + FIRST_CANARY + FIRST_STOPPED
FAULTY = BUSY + BROKEN
HEARD = WORKING + FAULTY
UP = HEARD + OUTDATED
THERE = GOOD + STALE

UPDATE_TABLE: Final = (
    # No supply for its kernel: no toolkit image, or no build yet.
    UpdateRow(MOVED, ANY_PHASE, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE, UNSERVED,
        Act.RELEASE, "its kernel changed: the pod for the old one cannot serve it, "
        "and there is no image or build for the new one yet"),
    UpdateRow(UNASSIGNED + GOOD + STALE + NEWEST, ANY_PHASE, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE,
        UNSERVED, Act.KEEP, "there is no image or build for its kernel yet"),
    # Already has the newest revision.
    UpdateRow(NEWEST, ANY_PHASE, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE,
        SERVED + ONLY_LAST_GOOD + CONFLICT, Act.KEEP, "has the newest revision"),
    # The newest revision is first built once for all nodes; no node waits for it without a driver.
    UpdateRow(UNASSIGNED + MOVED, SETTLED + UNDER_WAY + HALTED, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE,
        ONLY_LAST_GOOD, Act.GIVE_GOOD,
        "the newest revision is not built for its kernel, the good one is"),
    UpdateRow(UNASSIGNED + MOVED, WITHOUT_GOOD, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE, ONLY_LAST_GOOD,
        Act.KEEP, "no revision was ever good"),  # unreachable
    UpdateRow(THERE, ANY_PHASE, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE, ONLY_LAST_GOOD,
        Act.KEEP, "the newest revision is not built for its kernel yet"),
    # Two Drivers for one module: a node where another Driver has it gets nothing new.
    UpdateRow(UNASSIGNED + GOOD + STALE, ANY_PHASE, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE, CONFLICT,
        Act.KEEP, "another Driver has a module of the same name there"),
    UpdateRow(MOVED, SETTLED + UNDER_WAY + HALTED, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE, CONFLICT,
        Act.GIVE_GOOD, "another Driver has a module of the newest revision there"),
    UpdateRow(MOVED, WITHOUT_GOOD, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE, CONFLICT,
        Act.RELEASE, "another Driver has a module of the same name there, "
        "and no revision was ever good"),
    # Paused or stopped, with no good revision to fall back on.
    UpdateRow(UNASSIGNED + MOVED + GOOD + STALE, HELD, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE, SERVED,
        Act.KEEP, "the rollout is paused, and no revision was ever good"),
    UpdateRow(UNASSIGNED + MOVED + GOOD + STALE, FIRST_STOPPED, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE,
        SERVED, Act.KEEP, "the canary failed, and no revision was ever good"),
    # New and moved nodes.
    UpdateRow(UNASSIGNED + MOVED, FIRST, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE, SERVED,
        Act.GIVE_NEWEST, "no revision was ever good, and there is no canary to wait for"),
    UpdateRow(UNASSIGNED + MOVED, FIRST_CANARY, UP, ANY_BOOT, ANY_UPGRADE, SERVED,
        Act.AS_CANARY, "no revision was ever good, so the canaries are first"),
    UpdateRow(UNASSIGNED + MOVED, FIRST_CANARY, DOWN, ANY_BOOT, ANY_UPGRADE, SERVED,
        Act.KEEP, "the node is not ready, so it is no canary"),
    UpdateRow(UNASSIGNED, SETTLED + UNDER_WAY + HALTED, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE, SERVED,
        Act.GIVE_GOOD, "a new node gets the last good revision"),
    UpdateRow(MOVED, SETTLED + HALTED, ANY_HEALTH, ANY_BOOT, ANY_UPGRADE, SERVED,
        Act.GIVE_GOOD, "a moved node gets the last good revision"),
    UpdateRow(MOVED, UNDER_WAY, ANY_HEALTH, ANY_BOOT, LIVE, SERVED,
        Act.GIVE_GOOD, "a moved node gets the last good revision, and the newest in its turn"),
    UpdateRow(MOVED, UNDER_WAY, ANY_HEALTH, ANY_BOOT, ON_REBOOT, SERVED,
        Act.IN_TURN_OR_GOOD, "it rebooted, so it may change"),
    # A node that is down changes only after it is up again.
    UpdateRow(THERE, FIRST + FIRST_CANARY + SETTLED + UNDER_WAY + HALTED, DOWN, ANY_BOOT,
        ANY_UPGRADE, SERVED, Act.KEEP, "the node is not ready"),
    # Paused by a user, or stopped by too many failures.
    UpdateRow(THERE, PAUSED, UP, ANY_BOOT, ANY_UPGRADE, SERVED,
        Act.KEEP, "the rollout is paused"),
    UpdateRow(THERE, STOPPED, UP, ANY_BOOT, ANY_UPGRADE, SERVED,
        Act.KEEP, "the rollout is stopped by failures"),
    # The node has the good revision, and there is a newer one.
    UpdateRow(GOOD, FIRST + FIRST_CANARY + SETTLED, UP, ANY_BOOT, ANY_UPGRADE, SERVED,
        Act.KEEP, "has the good revision"),  # unreachable: it is the newest, or there is none
    UpdateRow(GOOD, UNDER_WAY, WORKING, ANY_BOOT, LIVE, SERVED,
        Act.IN_TURN, "it changes when its turn comes"),
    UpdateRow(GOOD, UNDER_WAY, BUSY + OUTDATED, ANY_BOOT, LIVE, SERVED,
        Act.KEEP, "comes up with the good revision first"),
    UpdateRow(GOOD, CANARY, BROKEN, ANY_BOOT, LIVE, SERVED,
        Act.KEEP, "does not work anyway, so it is no canary"),
    UpdateRow(GOOD, OPEN, BROKEN, ANY_BOOT, LIVE, SERVED,
        Act.GIVE_NEWEST, "does not work anyway, so there is nothing to lose"),
    UpdateRow(GOOD, UNDER_WAY, UP, REBOOTED, ON_REBOOT, SERVED,
        Act.IN_TURN, "it rebooted, so it may change"),
    UpdateRow(GOOD, UNDER_WAY, UP, RUNNING, ON_REBOOT, SERVED,
        Act.KEEP, "changes at its next reboot"),
    # The node has an abandoned revision: it gets a correction, or the good revision again.
    UpdateRow(STALE, FIRST + FIRST_CANARY + SETTLED + UNDER_WAY, OUTDATED, ANY_BOOT, ANY_UPGRADE,
        SERVED, Act.KEEP, "waits for its next report: the present one would count for the new pod"),
    UpdateRow(STALE, FIRST + FIRST_CANARY + SETTLED, WORKING, ANY_BOOT, LIVE, SERVED,
        Act.IN_TURN, "it changes when its turn comes"),
    UpdateRow(STALE, FIRST + SETTLED, FAULTY, ANY_BOOT, LIVE, SERVED,
        Act.GIVE_NEWEST, "does not work, so there is nothing to lose"),
    UpdateRow(STALE, FIRST_CANARY, FAULTY, ANY_BOOT, LIVE, SERVED,
        Act.AS_CANARY, "no revision was ever good, so the canaries are first"),
    UpdateRow(STALE, UNDER_WAY, HEARD, ANY_BOOT, LIVE, SERVED,
        Act.IN_TURN, "it changes when its turn comes"),
    UpdateRow(STALE, FIRST, BROKEN, ANY_BOOT, ON_REBOOT, SERVED,
        Act.GIVE_NEWEST, "no revision was ever good, so there is nothing to lose"),
    UpdateRow(STALE, FIRST_CANARY, BROKEN, ANY_BOOT, ON_REBOOT, SERVED,
        Act.AS_CANARY, "no revision was ever good, so the canaries are first"),
    UpdateRow(STALE, FIRST_CANARY, WORKING + BUSY, REBOOTED, ON_REBOOT, SERVED,
        Act.AS_CANARY, "it rebooted, so it may change when it is chosen as a canary"),
    UpdateRow(STALE, FIRST + FIRST_CANARY, WORKING + BUSY, RUNNING, ON_REBOOT, SERVED,
        Act.KEEP, "changes at its next reboot"),
    UpdateRow(STALE, FIRST, WORKING + BUSY, REBOOTED, ON_REBOOT, SERVED,
        Act.GIVE_NEWEST, "it rebooted, so it may change"),
    UpdateRow(STALE, SETTLED, HEARD, REBOOTED, ON_REBOOT, SERVED,
        Act.GIVE_NEWEST, "it rebooted, so it may change"),
    UpdateRow(STALE, UNDER_WAY, HEARD, REBOOTED, ON_REBOOT, SERVED,
        Act.IN_TURN, "it rebooted, so it may change"),
    UpdateRow(STALE, SETTLED + UNDER_WAY, HEARD, RUNNING, ON_REBOOT, SERVED,
        Act.KEEP, "changes at its next reboot"),
)  # fmt: skip

_ROWS: Final[Mapping[tuple[object, ...], UpdateRow]] = {
    situation: row for row in UPDATE_TABLE for situation in row.situations()
}


def decide_update(situation: UpdateSituation) -> UpdateRow:
    """Return the one row for a situation."""
    return _ROWS[situation]
