"""How long a deadline is on a machine that is slow, or busy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from nodeside.system import process
from tests import TOP
from tests.console import LONG
from tests.patience import MOST, NAME, Measured, measure, measured, patience


def clock(step: float) -> Callable[[], float]:
    """Goes on by so many seconds with each look."""
    looks = count()
    return lambda: next(looks) * step


@pytest.fixture
def new_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Nothing has been measured yet."""
    monkeypatch.delenv(NAME, raising=False)
    measured.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    measured.cache_clear()


@pytest.mark.parametrize(
    ("wall", "processor", "factor"),
    [(0.3, 0.2, 1.0), (1.0, 1.0, 1.0), (2.5, 1.0, 2.5), (3.0, 3.0, 3.0), (1000.0, 9.0, MOST)],
)
def test_deadlines_are_never_shorter_and_at_most_so_much_longer(
    wall: float, processor: float, factor: float
) -> None:
    found = Measured(wall, processor)

    assert found.factor == factor
    assert str(found).startswith(f"deadlines are {factor:.1f} times as long")


def test_a_slow_machine_is_one_that_takes_longer_for_the_same() -> None:
    quick, slow = (measure(clock(step), clock(0.0)) for step in (0.001, 0.004))

    assert slow.wall == pytest.approx(4 * quick.wall)


def test_the_slowest_machine_does_less_and_is_measured_all_the_same() -> None:
    looks: list[float] = []
    ticks = clock(0.1)

    def slow() -> float:
        looks.append(ticks())
        return looks[-1]

    assert measure(slow, clock(0.0)).factor == MOST
    assert len(looks) < 10


def test_a_run_measures_once(new_run: pytest.MonkeyPatch) -> None:
    new_run.setattr("tests.patience.measure", lambda: Measured(2.0, 1.5))
    assert patience(120.0) == 240.0
    new_run.setattr("tests.patience.measure", lambda: Measured(4.0, 4.0))

    assert patience(120.0) == 240.0
    measured.cache_clear()  # as in another process of the run
    assert patience(120.0) == 240.0
    assert str(measured()) == str(Measured(2.0, 1.5))


@pytest.mark.slow
def test_what_a_run_starts_has_its_factor() -> None:
    code = "from tests.patience import patience; print(patience(10))"
    argv = [sys.executable, "-c", code]

    assert process.run(argv, timeout=LONG, cwd=TOP, env={NAME: "3.5 1"}).output == "35.0\n"


def test_all_processes_of_this_run_have_the_same() -> None:
    """The one that runs this test was started by the one that measured, or is that one."""
    found = measured()

    assert [float(word) for word in os.environ[NAME].split()] == [found.wall, found.processor]
