"""What a run needs, and what is said before the first test if it is not there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodeside.system import process
from tests import TOP
from tests.console import LONG
from tests.room import NEEDS, Machine, Room, free_memory, lacking, place_in_memory, selected

GIB = 1024  # MiB
FILLED = ("archive", "roots", "fresh", "kernels", "nodes", "kubelets", "labs", "images")


_TIGHT = """
import tests.room

tight = tests.room.Machine(memory=lambda: 100)
tests.room.Machine = lambda: tight
"""


def machine(place: Path, *, memory: int = 64 * GIB, disk: int = 64 * GIB) -> Machine:
    """With so many MiB, all of its disk in one file system."""
    return Machine(
        trial=place / "trial",
        controlplane=place / "controlplane",
        temporary=place / "tmp",
        memory=lambda: memory,
        disk=lambda _: disk,
    )


@pytest.mark.parametrize(
    ("options", "blocks", "taken"),
    [(0, 1 << 20, True), (os.ST_NOEXEC, 1 << 20, False), (0, 1 << 14, False)],
)
def test_a_place_in_memory_is_taken_if_programs_run_there_and_it_is_large_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: int, blocks: int, taken: bool
) -> None:
    there = SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_flag=options)
    monkeypatch.setattr(os, "statvfs", lambda _: there)
    monkeypatch.setattr("tests.room.free_memory", lambda: 64 * GIB)
    assert place_in_memory(tmp_path) == (tmp_path if taken else None)


def test_where_there_is_no_place_in_memory_none_is_taken(tmp_path: Path) -> None:
    assert place_in_memory(tmp_path / "shm") is None


def test_a_large_machine_lacks_nothing(tmp_path: Path) -> None:
    assert list(lacking(list(NEEDS), machine(tmp_path))) == []


def test_too_little_memory_is_said_with_the_tier_that_needs_it_and_what_to_do(
    tmp_path: Path,
) -> None:
    [said] = lacking(["unit", "vm", "cluster"], machine(tmp_path, memory=2 * GIB))

    assert said == (
        "tier vm: 4.5 GiB of memory are needed, and 2.0 GiB are free\n"
        "hint: end what else runs here; or leave a tier out: -m 'not vm'"
    )
    assert list(lacking(["unit", "cluster"], machine(tmp_path, memory=2 * GIB))) == []


def test_too_little_disk_is_said_with_the_place(tmp_path: Path) -> None:
    [said] = lacking(list(NEEDS), machine(tmp_path, disk=5 * GIB))

    assert (
        f"{tmp_path}: 20.6 GiB of disk are needed, and 5.0 GiB are free\nhint: make clean" in said
    )


def test_what_a_cache_has_needs_no_room_again(tmp_path: Path) -> None:
    for kind in FILLED:
        (tmp_path / "trial" / kind / "one").mkdir(parents=True)
    (tmp_path / "controlplane" / "one").mkdir(parents=True)

    assert list(lacking(list(NEEDS), machine(tmp_path, disk=5 * GIB))) == []


@pytest.mark.parametrize("tier", NEEDS)
def test_a_run_without_a_tier_needs_no_room_for_it(tier: str) -> None:
    assert selected(f"not {tier}") == [each for each in NEEDS if each != tier]


def test_what_make_unit_runs_is_of_its_tier_alone() -> None:
    assert selected("not (vm or toolkit or cluster or registry or slow)") == ["unit"]
    assert selected("") == list(NEEDS)


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  16777216 kB\nMemAvailable:  8388608 kB\n")
    assert free_memory(meminfo, tmp_path) == 8 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(meminfo, tmp_path) == 8 * GIB
    (tmp_path / "memory.max").write_text(f"{4 << 30}\n")
    (tmp_path / "memory.stat").write_text(f"anon {1 << 30}\nfile {2 << 30}\n")

    assert free_memory(meminfo, tmp_path) == 3 * GIB


def config(**options: Any) -> pytest.Config:
    """Of a process that gives tests away, as in `make test`."""
    options = {"dist": "load", "markexpr": "", "collectonly": False, **options}
    return cast(
        pytest.Config,
        SimpleNamespace(
            getoption=lambda name, default=None: options.get(name, default),
            args_source=pytest.Config.ArgsSource.TESTPATHS,
        ),
    )


def test_a_run_without_room_ends_before_its_first_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.room.lacking", lambda tiers, _: [f"no room: {' '.join(tiers)}"])

    with pytest.raises(pytest.UsageError, match="no room: unit registry toolkit cluster"):
        Room(config(markexpr="not vm")).pytest_sessionstart()
    Room(config(collectonly=True)).pytest_sessionstart()


@pytest.mark.slow
def test_the_error_is_all_that_such_a_run_says(tmp_path: Path) -> None:
    """One process, one file; the machine that has no room is played."""
    (tmp_path / "tight.py").write_text(_TIGHT)
    argv = [sys.executable, "-m", "pytest", "-p", "tight", "tests/text/test_table.py"]
    env = {"PYTHONPATH": f"{tmp_path}:{TOP}"}

    done = process.run(argv, timeout=LONG, cwd=TOP, env=env, check=False)

    assert done.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "tier unit: 0.5 GiB of memory are needed, and 0.1 GiB are free" in done.errors
    assert "passed" not in done.output
