"""What a run costs: by kind of program, by tier, and what changed between two runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.costs.cold import as_table, building, built_since
from tests.costs.memory import Peak, Watch, held_by
from tests.costs.meter import (
    COMPILERS,
    KUBERNETES,
    MACHINES,
    OTHERS,
    PYTHON,
    UNKNOWN,
    Exit,
    Meter,
    descendants,
    kind_of,
)
from tests.costs.record import Costs, by_process, by_tier, difference, read, write


def run(*phases: tuple[str, str, float, dict[str, float]]) -> Costs:
    """A run of one process: (file, tier, seconds on the wall, seconds of a processor)."""
    costs, now = Costs(began=1000.0, commit="c0ffee"), 1000.0
    for path, tier, seconds, used in phases:
        costs.add(
            path,
            tier=tier,
            lane=path,
            process="gw0",
            began=now,
            ended=now + seconds,
            used=used,
            counts=True,
        )
        now += seconds
    return costs


def test_a_program_is_known_by_the_names_that_its_threads_have() -> None:
    assert {kind_of(name) for name in ("python3.11", "nodeside", "pytest")} == {PYTHON}
    assert {kind_of(name) for name in ("qemu-system-x86", "CPU 0/TCG", "qemu-aarch64-st")} == {
        MACHINES
    }
    assert {kind_of(name) for name in ("cc1", "x86_64-linux-gn", "aarch64-linux-g", "compile")} == {
        COMPILERS
    }
    assert {kind_of(name) for name in ("kube-apiserver", "etcd", "kwok")} == {KUBERNETES}
    assert {kind_of(name) for name in ("bash", "asterisk", "goat", "ldconfig")} == {OTHERS}


def test_descendants_are_found_through_parents_that_have_ended_and_that_live() -> None:
    alive = {30: 7, 40: 1}
    exits = [
        Exit(pid=11, parent=10, name="cc1", seconds=1.0),
        Exit(pid=10, parent=7, name="make", seconds=1.0),
        Exit(pid=31, parent=30, name="sh", seconds=1.0),
        Exit(pid=41, parent=40, name="foreign", seconds=1.0),
        Exit(pid=51, parent=1, name="orphan", seconds=1.0),
        Exit(pid=61, parent=62, name="circle", seconds=1.0),
        Exit(pid=62, parent=61, name="circle", seconds=1.0),
    ]

    found = descendants(7, exits, lambda pid: alive.get(pid, 0))

    assert [exit_.pid for exit_ in found] == [11, 10, 31]


@pytest.mark.slow
def test_the_kernel_says_what_a_program_used_that_this_process_started() -> None:
    meter = Meter()
    busy = "import time\nwhile time.process_time() < 0.3: pass"  # ticks would only be a sample

    subprocess.run(["sh", "-c", f"{sys.executable} -c '{busy}'; true"], check=True)
    used = meter.take()

    assert used[PYTHON if os.getuid() == 0 else UNKNOWN] >= 0.25
    assert sum(meter.take().values()) < 0.25  # once only


@pytest.mark.slow
def test_where_kinds_are_not_asked_for_no_program_has_one() -> None:
    meter = Meter(by_kind=False)
    busy = "import time\nwhile time.process_time() < 0.3: pass"

    subprocess.run([sys.executable, "-c", busy], check=True)

    used = meter.take()
    assert used[UNKNOWN] >= 0.25
    assert set(used) == {PYTHON, UNKNOWN}


class _Full:
    """Messages that the socket could not hold."""

    lost = True

    def read(self) -> list[Exit]:
        return []


@pytest.mark.slow
def test_what_the_kernel_said_in_vain_is_that_of_unknown_programs() -> None:
    meter = Meter(_Full())
    busy = "import time\nwhile time.process_time() < 0.3: pass"  # ticks would only be a sample

    subprocess.run([sys.executable, "-c", busy], check=True)

    assert meter.take()[UNKNOWN] >= 0.25


def test_the_costs_of_a_run_are_read_as_they_were_written(tmp_path: Path) -> None:
    costs = run(("tests/a.py", "unit", 2.0, {PYTHON: 1.5}))

    write(tmp_path / "new" / "costs.json", costs)

    assert read(tmp_path / "new" / "costs.json") == costs


def test_costs_of_another_version_or_cut_short_are_none(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    for text in ("", "{", "[]", '{"files": 3}', '{"began": 1.0, "files": [{"path": 1}]}'):
        path.write_text(text)
        assert read(path) is None, text
    assert read(tmp_path / "missing.json") is None


def test_the_table_has_a_row_for_each_tier_and_what_was_waited() -> None:
    costs = run(
        ("tests/a.py", "unit", 2.0, {PYTHON: 2.0}),
        ("tests/vm/b.py", "vm", 60.0, {PYTHON: 1.0, MACHINES: 39.0}),
    )

    lines = [line.split() for line in by_tier(costs, ("unit", "vm")).splitlines()]

    assert lines[1:] == [
        ["unit", "2", ".", ".", ".", ".", ".", "2", "."],
        ["vm", "1", "39", ".", ".", ".", ".", "40", "20"],
        ["all", "3", "39", ".", ".", ".", ".", "42", "20"],
    ]


def test_what_a_process_ran_is_shown_in_its_order_and_what_is_short_in_one_line() -> None:
    costs = run(
        ("tests/a.py", "unit", 5.0, {PYTHON: 2.0}),
        ("tests/b.py", "unit", 5.0, {PYTHON: 3.0}),
        ("tests/vm/c.py", "vm", 60.0, {MACHINES: 50.0}),
    )

    lines = [line.split(maxsplit=4) for line in by_process(costs).splitlines()]

    assert lines[1:] == [
        ["gw0", "0", "10", "5", "2 lanes of less than 20 s"],
        ["gw0", "10", "70", "50", "tests/vm/c.py"],
    ]


def test_two_runs_are_compared_by_file_the_largest_change_first() -> None:
    old = run(
        ("tests/a.py", "unit", 5.0, {PYTHON: 5.0}), ("tests/b.py", "unit", 5.0, {PYTHON: 9.0})
    )
    new = run(
        ("tests/a.py", "unit", 5.0, {PYTHON: 4.0}), ("tests/c.py", "unit", 5.0, {PYTHON: 2.0})
    )

    lines = [line.split() for line in difference(old, new).splitlines()]

    assert lines[1:] == [
        ["9", "0", "-9", "tests/b.py"],
        ["0", "2", "+2", "tests/c.py"],
        ["5", "4", "-1", "tests/a.py"],
        ["14", "6", "-8", "all"],
    ]


def test_what_was_built_in_a_run_is_listed_with_its_seconds_and_what_failed_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([1000.0, 1002.0, 1010.0, 1290.0, 1300.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    one, other = tmp_path / "one", tmp_path / "other"
    for moment, cache, what in ((5.0, one, "before"), (300.0, one, "etcd, kubectl")):
        cache.mkdir(exist_ok=True)
        monkeypatch.setattr("time.time", lambda now=moment: now)
        with building(cache, what):
            pass
    with pytest.raises(ZeroDivisionError), building(one, "broken"):
        1 / 0  # noqa: B018

    built = built_since(100.0, (one, other))

    assert [line.split(maxsplit=1) for line in as_table(built).splitlines()[1:]] == [
        ["280", "etcd, kubectl"]
    ]


def test_a_run_that_found_everything_in_the_caches_says_so(tmp_path: Path) -> None:
    assert as_table(built_since(0.0, (tmp_path, tmp_path / "none"))) == (
        "nothing was built anew: programs and images were in the caches"
    )


def played(proc: Path, pid: int, parent: int, name: str, *, mib: int) -> None:
    """A process in a /proc, with so much memory of its own and as much that others have, too."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0\n")
    pages = (mib << 20) // os.sysconf("SC_PAGE_SIZE")
    (proc / str(pid) / "statm").write_text(f"{9 * pages} {2 * pages} {pages} 1 0 1 0\n")


def test_a_run_holds_what_its_processes_have_of_their_own(tmp_path: Path) -> None:
    played(tmp_path, 7, 1, "python", mib=100)
    played(tmp_path, 8, 7, "a (b) c", mib=10)
    played(tmp_path, 9, 8, "qemu-system-x86", mib=1536)
    played(tmp_path, 10, 1, "python", mib=1000)
    (tmp_path / "11").mkdir()  # it has ended

    assert held_by(7, tmp_path) == {PYTHON: 100 << 20, OTHERS: 10 << 20, MACHINES: 1536 << 20}
    assert held_by(12, tmp_path) == {}


def test_the_most_that_a_run_held_is_kept_and_named_if_it_is_much(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    for gib in (1, 7, 2):
        played(tmp_path, os.getpid(), 1, "qemu", mib=gib << 10)
        watch.look()
        shutil.rmtree(tmp_path / str(os.getpid()))

    assert watch.end().total == 7 << 30
    assert str(watch.peak).startswith("more than 6 GiB: 7.0 GiB of memory at most, after 0 s")
    assert str(Peak({PYTHON: 2 << 30, MACHINES: 3 << 30}, 61.4)) == (
        "5.0 GiB of memory at most, after 61 s: machines 3.0, python 2.0"
    )


def test_a_run_is_watched_until_it_ends() -> None:
    watch = Watch()
    watch.begin()

    assert watch.end().total > 10 << 20, "this process at least"
    assert watch.end() == watch.peak
