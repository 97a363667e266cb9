"""Estimates the API server's clock, which all deadlines are measured against.

The API server's objects record in its time since when a node is silent. A controller whose own
clock is a minute ahead would report every node of a rollout as failed; one whose clock is behind
would report none. Each response of the API server carries its time in the `Date` header, in whole
seconds, which is precise enough. Once the offset is set, a single response with a very different
time does not change it: several in a row must agree. Any thread may read the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Final

from nodeside import log

_NEAR: Final = 2.0  # seconds of tolerance: Date is rounded down, and responses take time to arrive
_ODD: Final = 30.0  # seconds of offset from which a warning is logged
_IN_A_ROW: Final = 5  # responses that must agree before a very different time is accepted


class ServerTime:
    """The API server's clock. `wall` is the local clock, which is used until the first response."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._ahead = 0.0  # seconds by which our clock is ahead
        self._last_date = ""
        self._known = False
        self._doubted: list[float] = []

    def now(self) -> float:
        return self._wall() - self._ahead

    def update_from_response(self, date: str) -> None:
        """Record the `Date` header of a response that just arrived; other text is ignored."""
        if date == self._last_date:
            return
        self._last_date = date
        with suppress(ValueError, TypeError, OverflowError):
            ahead = self._wall() - parsedate_to_datetime(date).timestamp() - 0.5
            self._adopt_offset(0.0 if abs(ahead) < _NEAR else ahead)
            self._known = True

    def _adopt_offset(self, ahead: float) -> None:
        """Adopt a new offset, unless rounding explains it: the time should not jitter."""
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
                f"the local clock is {abs(ahead):.0f} s {way} the API server's, which is used",
                hint="synchronize the clocks of the machines: timedatectl status",
            )
