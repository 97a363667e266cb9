"""Which tests `make test` runs side by side, and in which order.

With `--numprocesses 2` whoever is free takes the next lane: a file of tests, or all that share the
one control plane, or the one lab. What takes a moment comes first, so that a mistake shows early;
then what takes long, the longest first, so that both processes are done at about the same time.
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
LONG = (
    LAB,
    CLUSTER,
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
    "tests/vm/test_broken_builds.py",
    "tests/vm/test_signatures.py",
    "tests/vm/test_fpga.py",
    "tests/vm/test_running.py",
    "tests/vm/test_compressed.py",
)


def lane(nodeid: str) -> str:
    """What must run in one process, in order: a file, or all that share what there is one of."""
    path = nodeid.partition("::")[0]
    return next((shared for shared in (CLUSTER, LAB) if path.startswith(shared)), path)


def turn(nodeid: str) -> int:
    """When a test's lane is taken: the lower, the earlier."""
    name = lane(nodeid)
    if name in SHORT:
        return len(LONG) + 2 + SHORT.index(name)
    if name in LONG:
        return 1 + LONG.index(name)
    return len(LONG) + 1 if name.startswith(MACHINES) else 0


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it has no stubs
    """Gives lanes away in the order of their tests, so none that lasts long is left for the end."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)
