from __future__ import annotations

import pytest

from bench.repeat import repeat, timings
from bench.room import BenchError
from nodeside.system import process


def test_each_run_of_the_loop_is_timed() -> None:
    said = process.run(repeat(3, "true"), timeout=30).output

    assert len(timings(said).values) == 3


def test_a_command_that_fails_is_no_measurement() -> None:
    done = process.run(repeat(3, "ls", "/no-such-file"), timeout=30, check=False)

    with pytest.raises(BenchError, match=r"(?s)to be timed failed.*no-such-file"):
        timings(done.output)


def test_times_of_a_terminal_are_read_too() -> None:
    assert timings("took 1.5 2.0\r\n").values == (0.5,)
