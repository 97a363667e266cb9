"""How much longer than usual a wait may last on this machine, now.

A deadline that only what hangs meets is written for an ordinary machine. On a slow one, or on one
that others keep busy, the same work takes several times as long, and so may a wait for it: it is
`patience(120)`, not 120. The factor is measured once in a run, by the process that begins it, in
less than half a second; all processes that it starts have it from their environment. It is 1 on
an ordinary machine, and never less.

Nothing but such a deadline depends on it: no test asserts how long something took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

NAME = "NODESIDE_TESTS_PATIENCE"  # the factor, and of what it was made: see Measured
MOST = 5.0  # the factor; what takes longer than that has to be given a quieter machine

_PIECES = 50
_USUAL = 0.0015  # seconds of a quiet ordinary processor for a piece
_ENOUGH = 0.4  # seconds, after which the pieces that were done are enough


@dataclass(frozen=True)
class Measured:
    """Seconds on the wall and of the processor, each for what takes a second usually."""

    wall: float
    processor: float

    @property
    def factor(self) -> float:
        """By the wall clock, which is that of the deadlines: a busy machine is slow, too."""
        return min(max(1.0, self.wall, self.processor), MOST)

    def __str__(self) -> str:
        return (
            f"deadlines are {self.factor:.1f} times as long: at the start of the run, what usually "
            f"takes a second took {self.wall:.1f} s, and {self.processor:.1f} s of a processor"
        )


def measure(
    wall: Callable[[], float] = time.perf_counter,
    processor: Callable[[], float] = time.process_time,
) -> Measured:
    """Do a fixed amount of work, or as much of it as can be done in 0.4 s."""
    began, own = wall(), processor()
    done = 0
    while done < _PIECES and wall() - began < _ENOUGH:
        sum(number * number % 7 for number in range(20_000))
        done += 1
    usual = done * _USUAL
    return Measured((wall() - began) / usual, (processor() - own) / usual)


@cache
def measured() -> Measured:
    """Of this run: what the process that began it found."""
    with suppress(KeyError, ValueError):
        wall, processor = map(float, os.environ[NAME].split())
        return Measured(wall, processor)
    found = measure()
    os.environ[NAME] = f"{found.wall} {found.processor}"
    return found


def patience(seconds: float) -> float:
    """How many seconds to wait, before it hangs, for what usually ends in so many."""
    return seconds * measured().factor
