"""Which tests `make test` runs side by side, and in which order.

With `--numprocesses 2` whoever is free takes the next lane: a file of tests, or all that share the
one control plane, or the one lab. These two begin at once, since they last and often wait. Then
comes what takes a moment, so that a mistake shows early; then what takes long, the longest first,
so that both processes are done at about the same time. What takes long is what took long in the
last run (tests/costs); a lane that was not in it takes long if it boots machines.

The lab lasts longest, so the other process leaves the processors to it. A third process makes it
later: a power cut in the lab then took 18 minutes, not 8.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

CLUSTER = "tests/cluster/"
LAB = "tests/lab/"
AT_ONCE = (LAB, CLUSTER)

_LONG = 20.0  # seconds of a processor; a lane that used less takes a moment
_BOOT_MACHINES = ("tests/vm/", "tests/fresh/", "tests/chaos/", "tests/bench/test_smallest")


def lane(nodeid: str) -> str:
    """What must run in one process, in order: a file, or all that share what there is one of."""
    path = nodeid.partition("::")[0]
    return next((shared for shared in AT_ONCE if path.startswith(shared)), path)


def niceness(nodeid: str) -> int:
    """How far the process of a test stands back, and what it starts: see nice(2)."""
    return 0 if lane(nodeid) == LAB else 10


def turn(nodeid: str, seconds: Mapping[str, float]) -> tuple[int, float]:
    """When a test's lane is taken: the lower, the earlier. `seconds` are those of the last run."""
    name = lane(nodeid)
    if name in AT_ONCE:
        return AT_ONCE.index(name), 0.0
    unknown = float("inf") if name.startswith(_BOOT_MACHINES) else 0.0
    took = seconds.get(name, unknown)
    return (len(AT_ONCE), 0.0) if took < _LONG else (len(AT_ONCE) + 1, -took)


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it has no stubs
    """Gives lanes away in the order of their tests, so none that lasts long is left for the end."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)
