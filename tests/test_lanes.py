"""What runs side by side, in which order, and what is said of it at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings

from tests.conftest import Tiers
from tests.lanes import AT_ONCE, CLUSTER, LAB, Lanes, lane, niceness, turn

LAST = {f"tests/vm/test_{name}.py": 10.0 * name for name in range(30)}


class Process:
    """One of the processes that tests are given to, as the scheduler sees it."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def given(tests: list[str]) -> list[list[str]]:
    """What each of three processes is given that all take a second for each test."""
    options = {"tx": ["popen"] * 3, "loadscopereorder": True}
    config = SimpleNamespace(option=SimpleNamespace(), getvalue=options.get)
    lanes = Lanes(cast(pytest.Config, config))
    processes: list[Any] = [Process("one"), Process("two"), Process("three")]
    ordered = sorted(tests, key=lambda test: turn(test, LAST))
    for process in processes:
        lanes.add_node(process)
    for process in processes:
        lanes.add_node_collection(process, ordered)
    lanes.schedule()
    done = [0] * len(processes)
    while not lanes.tests_finished:
        for number, process in enumerate(processes):
            if done[number] < len(process.given):
                lanes.mark_test_complete(process, process.given[done[number]])
                done[number] += 1
    return [[ordered[index] for index in process.given] for process in processes]


def test_tests_of_one_control_plane_run_in_one_process_and_machines_file_by_file() -> None:
    assert lane("tests/cluster/e2e/test_x.py::test_a") == lane("tests/cluster/test_y.py") == CLUSTER
    assert lane("tests/vm/test_x.py::test_a[1]") == "tests/vm/test_x.py"


def test_lab_and_control_plane_begin_then_comes_what_takes_a_moment_then_what_took_longest() -> (
    None
):
    shared = [f"{LAB}test_x.py", f"{CLUSTER}test_x.py"]
    moments = ["tests/vm/test_1.py", "tests/new.py"]
    long = [
        "tests/vm/test_new.py",
        "tests/vm/test_29.py",
        "tests/driver/x.py",
        "tests/vm/test_3.py",
    ]
    last = {**LAST, "tests/driver/x.py": 100.0, LAB: 1.0}

    names = [*reversed(long), *moments, *reversed(shared)]

    assert sorted(names, key=lambda name: turn(name, last)) == [*shared, *moments, *long]


def test_without_an_earlier_run_machines_come_last() -> None:
    names = ["tests/vm/test_x.py", "tests/x.py", "tests/fresh/test_x.py", CLUSTER]

    assert sorted(names, key=lambda name: turn(name, {})) == [
        CLUSTER,
        "tests/x.py",
        "tests/vm/test_x.py",
        "tests/fresh/test_x.py",
    ]


def test_who_does_not_run_the_lab_leaves_the_processors_to_it() -> None:
    assert niceness(f"{LAB}test_x.py::test_a") == 0
    assert {niceness(name) for name in (CLUSTER, *LAST, "tests/test_x.py")} == {10}


def test_processes_share_the_files_of_machines_and_none_idles_at_the_end() -> None:
    machines = [f"{name}::test_{i}" for name in LAST for i in range(4)]
    shared = [f"{name}test_x.py::test_{i}" for name in AT_ONCE for i in range(30)]
    rest = [f"tests/test_{i}.py::test_it" for i in range(10)]
    tests = [*rest, *machines, *shared]

    processes = given(tests)

    assert sorted(test for each in processes for test in each) == sorted(tests)
    assert max(map(len, processes)) - min(map(len, processes)) <= 4
    lanes = [{lane(test) for test in each} for each in processes]
    assert sum(map(len, lanes)) == len(set().union(*lanes))


class Said:
    """A terminal, and the lines that begin with a word."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str, **_: Any) -> None:
        self.lines.append(title)

    def line(self, text: str, **_: Any) -> None:
        self.lines.append(text)

    def of(self, *words: str) -> list[str]:
        return [line for line in self.lines if line.startswith(words)]


def ran(name: str, seconds: float, *, tier: str = "unit", slow: bool = False) -> pytest.TestReport:
    """A test that used so many seconds of a processor."""
    properties = [("tier", tier), ("slow", slow), ("used", {"python": seconds})]
    report = SimpleNamespace(
        nodeid=name, when="call", outcome="passed", failed=False, user_properties=properties
    )
    report.duration, report.start, report.stop = seconds, 0.0, seconds
    return cast(pytest.TestReport, report)


@pytest.mark.parametrize(
    ("profile", "hints"),
    [("quick", ["hint: make them cheaper, or mark them: @pytest.mark.slow"]), ("nodeside", [])],
)
def test_a_slow_unit_test_is_named_unless_it_is_marked_and_make_unit_says_what_to_do(
    profile: str, hints: list[str], profile_kept: None
) -> None:
    settings.load_profile(profile)
    tiers = Tiers(cast(pytest.Config, SimpleNamespace()), required=False)
    tiers.pytest_runtest_logreport(ran("a.py::test_short", 0.9))
    tiers.pytest_runtest_logreport(ran("a.py::test_long", 1.3))
    tiers.pytest_runtest_logreport(ran("a.py::test_longer", 2.5))
    tiers.pytest_runtest_logreport(ran("a.py::test_marked", 9.0, slow=True))
    tiers.pytest_runtest_logreport(ran("a.py::test_boots", 99.0, tier="vm"))
    said = Said()

    tiers.pytest_terminal_summary(said)

    assert said.of("slow", "hint") == [
        "slow: 2.5 CPU-seconds, a unit test: a.py::test_longer",
        "slow: 1.3 CPU-seconds, a unit test: a.py::test_long",
        *hints,
    ]
