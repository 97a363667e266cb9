"""Waiting for what others do: until a deadline, or until the first sign that it will not happen.

An error says what was waited for, and what was seen instead. Everything of the bench that looks
again and again waits here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.room import BenchError
from nodeside.errors import DeadlinePassed

_LOOK = 0.05  # seconds
_ASK = 1.0  # seconds; what could be wrong is asked less often than what is waited for


def nothing_broke() -> str:
    return ""


@dataclass(frozen=True)
class Waiting:
    """`broken` says why it is no use to wait any longer, "" while there is hope."""

    seconds: float
    broken: Callable[[], str] = nothing_broke
    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep

    def until(
        self,
        holds: Callable[[], object],
        what: str,
        seen: Callable[[], object],
        *,
        look: float = _LOOK,
    ) -> float:
        """Returns the moment at which something was seen to be so. `seen`: words for an error.

        Raises DeadlinePassed, and BenchError if something broke.
        """
        began = asked = self.now()
        while not holds():
            now = self.now()
            if now - asked >= _ASK:
                asked = now
                if why := self.broken():
                    raise BenchError(f"waited for {what}, but {why}")
            if now - began > self.seconds:
                words = f"waited {self.seconds:g} s for {what}; seen: {seen()}"
                raise DeadlinePassed(words)
            self.pause(look)
        return self.now()
