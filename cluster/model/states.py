"""What a node, a rollout and a build may be like: the words that decisions are made of."""

from __future__ import annotations

from enum import Enum


class Word(Enum):
    """A word of the table: hashed by identity, since 5,000 nodes are looked up in every plan."""

    __hash__ = object.__hash__


class Place(Word):
    """Where a node is now, by its label `assigned`."""

    NOWHERE = "assigned to nothing"
    MOVED = "assigned to another pool: its kernel or OS changed"
    GOOD = "has the last good revision"
    STALE = "has a revision that is neither the newest nor good"
    NEWEST = "has the newest revision"


class Phase(Word):
    """How the rollout of a Driver stands."""

    HELD = "paused before any revision was good"
    FIRST = "no revision was ever good"
    SETTLED = "the newest revision is good"
    CANARY = "the first nodes try the newest revision"
    OPEN = "the newest revision goes to the other nodes"
    PAUSED = "paused"
    STOPPED = "stopped by failures"


class Health(Word):
    """How the driver is on a node, said in this boot and for the revision it has."""

    WORKING = "works"
    BUSY = "is on its way, or says nothing yet"
    BROKEN = "failed"
    ECHO = "its last word is of the revision it would get, from before it was sent elsewhere"
    DOWN = "the node is not ready"


class Boot(Word):
    """Whether this boot may have seen the driver. FRESH takes proof: a report of an older boot."""

    RUNNING = "the driver may have run in this boot"
    FRESH = "rebooted"


class Supply(Word):
    """Whether the node's pool has what a pod there needs: a toolkit image, or prebuilt modules."""

    SERVED = "has"
    UNSERVED = "has not"
    GOOD_ONLY = "has it for the good revision: the newest is being built, or does not build"
    TAKEN = "has it, but another Driver has a module of the newest revision on this node"


class Progress(Enum):
    """How a build stands, as far as it concerns nodes."""

    RUNNING = "it is being built"
    DONE = "it can be fetched"
    REFUSED = "the driver does not build for it"
    BROKEN = "it could not be built once for all, so the nodes build"
