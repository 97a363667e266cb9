"""Every wait of the bench ends, and says what was waited for and what was seen."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from bench.room import BenchError
from bench.waiting import Waiting
from nodeside.errors import DeadlinePassed


@dataclass
class Clock:
    """Time passes only while somebody pauses."""

    time: float = 100.0
    paused: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)
        self.time += seconds


def test_the_moment_is_told_at_which_it_was_so() -> None:
    clock = Clock()
    waiting = Waiting(60.0, now=clock.now, pause=clock.pause)

    assert waiting.until(lambda: clock.time >= 103, "time", clock.now, look=0.5) == 103
    assert set(clock.paused) == {0.5}


def test_at_the_deadline_it_says_what_was_seen() -> None:
    clock = Clock()
    waiting = Waiting(60.0, now=clock.now, pause=clock.pause)

    words = "waited 60 s for 20 DaemonSets; seen: 19"
    with pytest.raises(DeadlinePassed, match=words):
        waiting.until(lambda: False, "20 DaemonSets", lambda: 19)
    assert clock.time < 162


def test_what_broke_ends_the_wait_at_once() -> None:
    clock = Clock()

    def broken() -> str:
        return "n1 said: no" if clock.time > 105 else ""

    waiting = Waiting(60.0, broken, clock.now, clock.pause)

    with pytest.raises(BenchError, match="waited for all to speak, but n1 said: no"):
        waiting.until(lambda: False, "all to speak", lambda: "silence")
    assert clock.time < 108


def test_what_came_true_is_not_doubted() -> None:
    waiting = Waiting(60.0, lambda: "something else broke", now=lambda: 0.0)

    assert waiting.until(lambda: True, "it", lambda: "it") == 0.0
