"""Whether there is room for a run of the tests: memory for its machines, disk for its caches.

It is asked before the first test, of the tiers that are to run. What would fail in the middle for
want of room, after half an hour, fails at once, and says what to do.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from nodeside.trial.cache import default_directory
from tests.controlplane.binaries import cache_directory

_MIB = 1 << 20
_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_SHARED_MEMORY = Path("/dev/shm")  # shm_overview(7)


@dataclass(frozen=True)
class Need:
    """MiB: of memory, of temporary files, and of each directory of a cache once it is filled."""

    memory: int = 1024
    temporary: int = 512
    trial: Mapping[str, int] = field(default_factory=dict)
    controlplane: int = 0


_ON_THIS_HOST = {"archive": 700, "roots": 2600, "fresh": 3100}
# A node of the lab has 2 GiB, another machine beside it 1.5 GiB.
NEEDS: Mapping[str, Need] = {
    "unit": Need(memory=512),
    "registry": Need(memory=512),
    "toolkit": Need(temporary=3072, trial=_ON_THIS_HOST),
    "cluster": Need(memory=1536, controlplane=2048),
    "vm": Need(
        memory=4608,
        temporary=4096,
        trial={
            **_ON_THIS_HOST,
            "kernels": 2400,
            "nodes": 1600,
            "kubelets": 1500,
            "labs": 1700,
            "images": 1300,
        },
        controlplane=2048,
    ),
}


def free_memory(meminfo: Path = _MEMINFO, group: Path = _GROUP) -> int:
    """MiB that this machine has, or if that is less, that the container may still have."""
    rows = dict(row.split(":") for row in meminfo.read_text().splitlines())
    free = int(rows["MemAvailable"].split()[0]) // 1024
    with suppress(OSError, ValueError, KeyError):  # it has no limit
        limit = int((group / "memory.max").read_text())
        held = dict(row.split() for row in (group / "memory.stat").read_text().splitlines())
        free = min(free, (limit - int(held["anon"])) // _MIB)
    return free


def place_in_memory(shared: Path = _SHARED_MEMORY) -> Path | None:
    """Where files are kept in memory, if programs may run there and a run of `unit` has room.

    To make and remove a file costs a fifth there of what it costs on a disk.
    """
    with suppress(OSError):
        there = os.statvfs(shared)
        free = min(there.f_bavail * there.f_frsize // _MIB, free_memory())
        if not there.f_flag & os.ST_NOEXEC and free >= 4 * NEEDS["unit"].memory:
            return shared
    return None


@dataclass(frozen=True)
class Machine:
    """What there is: the caches, and MiB that are free, of memory and where a path is."""

    trial: Path = field(default_factory=default_directory)
    controlplane: Path = field(default_factory=cache_directory)
    temporary: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    memory: Callable[[], int] = free_memory
    disk: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free // _MIB


def lacking(tiers: Collection[str], machine: Machine) -> Iterator[str]:
    """What there is too little of for these tiers, each with what to do."""
    biggest = max(tiers, key=lambda tier: NEEDS[tier].memory, default="unit")
    needed, free = NEEDS[biggest].memory, machine.memory()
    if free < needed:
        yield _too_little("memory", f"tier {biggest}", needed, free, "end what else runs here")
    for place, amount in _on_disk(tiers, machine).items():
        free = machine.disk(place)
        if free < amount:
            what = f"{', '.join(tiers)}: {place}"
            yield _too_little("disk", f"tiers {what}", amount, free, "make clean, if it is old")


def _too_little(of: str, who: str, needed: int, free: int, todo: str) -> str:
    have = f"{needed / 1024:.1f} GiB of {of} are needed, and {free / 1024:.1f} GiB are free"
    return f"{who}: {have}\nhint: {todo}; or leave a tier out: -m 'not vm'"


def _on_disk(tiers: Collection[str], machine: Machine) -> dict[Path, int]:
    """MiB by file system, named by one place in it. What a cache has already is not counted."""
    needs = [NEEDS[tier] for tier in tiers]
    kinds = {kind: amount for need in needs for kind, amount in need.trial.items()}
    trial = sum(amount for kind, amount in kinds.items() if _is_empty(machine.trial / kind))
    programs = max((need.controlplane for need in needs), default=0)
    wanted = (
        (machine.temporary, max((need.temporary for need in needs), default=0)),
        (machine.trial, trial),
        (machine.controlplane, programs if _is_empty(machine.controlplane) else 0),
    )
    found: dict[int, tuple[Path, int]] = {}
    for path, amount in wanted:
        there = next(each for each in (path, *path.parents) if each.exists())
        device = there.stat().st_dev
        first, sum_ = found.get(device, (there, 0))
        found[device] = first, sum_ + amount
    return dict(found.values())


def _is_empty(directory: Path) -> bool:
    """Of what is kept: a lock may be there."""
    return not directory.is_dir() or all(each.name[0] == "." for each in directory.iterdir())


def selected(expression: str) -> list[str]:
    """The tiers that a run of all files has, with `-m EXPRESSION`."""
    if not expression:
        return list(NEEDS)
    compiled = Expression.compile(expression)
    return [tier for tier in NEEDS if compiled.evaluate(partial(_is, tier))]


def _is(tier: str, name: str, /, **_: object) -> bool:
    return name == tier


class Room:
    """Ends a run that there is no room for, before its first test.

    Where several processes run tests, the one that gives them away knows no test's tier: it looks
    at the marks that were asked for. A run of some files only is looked at where it is one process.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._gives_away = not self._is_worker and config.getoption("dist", "no") != "no"

    def pytest_sessionstart(self) -> None:
        if self._gives_away and self._config.args_source is not pytest.Config.ArgsSource.ARGS:
            self.require(selected(self._config.getoption("markexpr")))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not (self._is_worker or self._gives_away):
            properties = [dict(item.user_properties) for item in session.items]
            self.require({str(each["tier"]) for each in properties})

    def require(self, tiers: Collection[str]) -> None:
        if self._config.getoption("collectonly"):
            return
        if missing := list(lacking(tiers, Machine())):
            raise pytest.UsageError("\n".join(["there is no room for this run", *missing]))
