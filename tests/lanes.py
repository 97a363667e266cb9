"""Which tests `make test` runs side by side, and in which order.

With `--numprocesses 2` whoever is free takes the next lane: a file of tests, or all that share the
one control plane, or the one lab. These two begin at once, since they last and often wait. Then
comes what takes a moment, so that a mistake shows early; then what takes long, the longest first,
so that both processes are done at about the same time.

The lab lasts longest, so the other process leaves the processors to it. A third process makes it
later: a power cut in the lab then took 18 minutes, not 8.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

MACHINES = "tests/vm/"
CLUSTER = "tests/cluster/"
LAB = "tests/lab/"

# Measured in processor time. A file of machines that is not named comes before those that are
# short; one that is forgotten here costs a minute at the end, and nothing else.
AT_ONCE = (LAB, CLUSTER)
LONG = (
    "tests/vm/test_dkms_packages.py",
    "tests/vm/test_arm64.py",
    "tests/fresh/test_fresh_machine.py",
    "tests/vm/test_try.py",
    "tests/vm/test_damage.py",
    "tests/vm/test_lifecycle.py",
    "tests/vm/test_machine.py",
    "tests/vm/test_prebuilt.py",
    "tests/vm/test_faults.py",
    "tests/chaos/test_chaos.py",
)
SHORT = (
    "tests/vm/test_upgrades.py",
    "tests/vm/test_hostile.py",
    "tests/vm/test_refusals.py",
    "tests/vm/test_builds.py",
    "tests/vm/test_signatures.py",
    "tests/vm/test_fpga.py",
    "tests/vm/test_running.py",
    "tests/vm/test_compressed.py",
)
_A_MOMENT = len(AT_ONCE)
_AFTER_A_MOMENT = _A_MOMENT + 1
_AFTER_LONG = _AFTER_A_MOMENT + len(LONG)


def lane(nodeid: str) -> str:
    """What must run in one process, in order: a file, or all that share what there is one of."""
    path = nodeid.partition("::")[0]
    return next((shared for shared in AT_ONCE if path.startswith(shared)), path)


def niceness(nodeid: str) -> int:
    """How far the process of a test stands back, and what it starts: see nice(2)."""
    return 0 if lane(nodeid) == LAB else 10


def turn(nodeid: str) -> int:
    """When a test's lane is taken: the lower, the earlier."""
    name = lane(nodeid)
    if name in AT_ONCE:
        return AT_ONCE.index(name)
    if name in LONG:
        return _AFTER_A_MOMENT + LONG.index(name)
    if name in SHORT:
        return _AFTER_LONG + 1 + SHORT.index(name)
    return _AFTER_LONG if name.startswith(MACHINES) else _A_MOMENT


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it has no stubs
    """Gives lanes away in the order of their tests, so none that lasts long is left for the end."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)
