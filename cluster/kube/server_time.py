"""What time it is by the API server: the clock that every deadline is counted with.

Since when a node is silent stands in the API server's objects, in its time. A controller whose own
clock is a minute ahead would call every node of a rollout failed, and one that is behind none. Each
answer of the API server has the time in its `Date` header, in whole seconds; that is near enough.
Once it is known, one answer with quite another time is no proof: some in a row have to say so.
Used by transport.py; any thread may ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Final

from nodeside import log

_NEAR: Final = 2.0  # seconds: Date is rounded down, and an answer is on its way for a while
_ODD: Final = 30.0  # seconds, from which on somebody should know
_IN_A_ROW: Final = 5  # answers, before the time is quite another one


class ServerTime:
    """`wall` is the clock of this machine, which counts until the first answer."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._ahead = 0.0  # of our clock, in seconds
        self._heard = ""
        self._known = False
        self._doubted: list[float] = []

    def now(self) -> float:
        return self._wall() - self._ahead

    def heard(self, date: str) -> None:
        """The `Date` of an answer that came just now; nothing is concluded from another text."""
        if date == self._heard:
            return
        self._heard = date
        with suppress(ValueError, TypeError, OverflowError):
            ahead = self._wall() - parsedate_to_datetime(date).timestamp() - 0.5
            self._take(0.0 if abs(ahead) < _NEAR else ahead)
            self._known = True

    def _take(self, ahead: float) -> None:
        """Only what is no matter of rounding: time should not go to and fro."""
        if abs(ahead - self._ahead) < _NEAR:
            self._doubted.clear()
            return
        if self._known and abs(ahead - self._ahead) >= _ODD:
            self._doubted = [each for each in self._doubted if abs(each - ahead) < _NEAR]
            self._doubted.append(ahead)
            if len(self._doubted) < _IN_A_ROW:
                return
        self._doubted.clear()
        self._ahead = ahead
        if abs(ahead) >= _ODD:
            way = "ahead of" if ahead > 0 else "behind"
            log.warning(
                f"the clock here is {abs(ahead):.0f} s {way} the API server's, which counts",
                hint="synchronize the clocks of the machines: timedatectl status",
            )
