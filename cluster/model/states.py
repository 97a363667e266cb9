"""Enums for the state of a node, a rollout and a build, on which decisions are based."""

from __future__ import annotations

from enum import Enum


class FastEnum(Enum):
    """A base enum hashed by identity for speed: every plan looks up 5,000 nodes."""

    __hash__ = object.__hash__


class Place(FastEnum):
    """The current assignment of a node, by its label `assigned`."""

    UNASSIGNED = "assigned to nothing"
    MOVED = "assigned to another pool: its kernel or OS changed"
    GOOD = "has the last good revision"
    STALE = "has a revision that is neither the newest nor good"
    NEWEST = "has the newest revision"


class Phase(FastEnum):
    """The phase of a Driver's rollout."""

    HELD = "paused before any revision was good"
    FIRST = "no revision was ever good, and all nodes may have the newest"
    FIRST_CANARY = "no revision was ever good, and the first nodes try the newest"
    FIRST_STOPPED = "no revision was ever good, and the newest failed on the first nodes"
    SETTLED = "the newest revision is good"
    CANARY = "the first nodes try the newest revision"
    OPEN = "the newest revision goes to the other nodes"
    PAUSED = "paused"
    STOPPED = "stopped by failures"


class Health(FastEnum):
    """The driver's health on a node, as reported in this boot for the revision it has."""

    WORKING = "works"
    BUSY = "is in progress, or has not reported yet"
    BROKEN = "failed"
    OUTDATED = "reported about the newest revision, but has been assigned another one since"
    DOWN = "the node is not ready"


class Boot(FastEnum):
    """Whether the driver may have run in this boot. REBOOTED needs a report of an older boot."""

    RUNNING = "the driver may have run in this boot"
    REBOOTED = "rebooted"


class Supply(FastEnum):
    """Whether the node's pool has the toolkit image or prebuilt modules that a pod there needs."""

    SERVED = "has the image or the modules"
    UNSERVED = "has neither the image nor the modules"
    ONLY_LAST_GOOD = "has it for the good revision: the newest is being built, or does not build"
    CONFLICT = "has it, but another Driver has a module of the newest revision on this node"


class BuildProgress(Enum):
    """The progress of a build as far as it matters for nodes."""

    RUNNING = "it is being built"
    DONE = "it can be fetched"
    REFUSED = "the driver does not build for this kernel"
    BROKEN = "the Job could not build it, so the nodes build"
