"""The timing of the main loop: intervals, CPU budget, and the heartbeat for the liveness probe."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

STUCK = 300.0  # seconds that a round may take before a restart would help


@dataclass
class Heartbeat:
    """The duration of the current round. The loop is busy while it works, not while it waits."""

    now: Callable[[], float] = time.monotonic
    _since: float | None = field(default=None, init=False)

    def begin_round(self) -> None:
        self._since = self.now()

    def end_round(self) -> None:
        self._since = None

    @property
    def busy_for(self) -> float:
        since = self._since
        return 0.0 if since is None else self.now() - since


@dataclass(frozen=True)
class LoopTimings:
    """The intervals of the loop, in seconds.

    `settle`: wait after a change, since changes tend to come in bursts. `between`: minimum time
    from one plan to the next. It grows, up to `longest`, if planning takes more than the fraction
    `share` of a CPU for long. `burst`: CPU time that may be used beyond that after an idle period.

    `echo`: how long to wait for our own writes to come back before planning again. `counts`:
    minimum interval between status updates in which only counts changed. `refresh`: how long a new
    leader tries to bring everything up to date; `optional`: the same for optional kinds; `sync`:
    how often it checks in that time whether it still leads.
    """

    settle: float = 0.05
    between: float = 0.25
    share: float = 0.02
    burst: float = 1.0
    longest: float = 5.0
    echo: float = 5.0
    first_retry: float = 1.0
    longest_retry: float = 30.0
    counts: float = 1.0
    sync: float = 1.0
    refresh: float = 30.0
    optional: float = 5.0


class CpuBudget:
    """The CPU time that plans may take; it grows by a share of the elapsed time.

    Occasional changes of a node are handled at once in a cluster of any size. During a rollout over
    thousands of nodes, where something changes all the time, plans are made less often.
    """

    def __init__(self, pace: LoopTimings, now: float) -> None:
        self._pace = pace
        self._left = pace.burst
        self._at = now
        self._last = 0.0

    def charge_plan(self, took: float, now: float) -> None:
        """Charge a plan that took `took` seconds, at most the time of the plan before.

        So a single slow plan, as for a new Driver, delays nothing.
        """
        self._grow_budget(now)
        least = -self._pace.longest * self._pace.share
        self._left = max(least, self._left - min(self._last, took))
        self._last = took

    def seconds_to_wait(self, now: float) -> float:
        """Return the seconds until the next plan."""
        self._grow_budget(now)
        return max(0.0, -self._left / self._pace.share)

    def _grow_budget(self, now: float) -> None:
        self._left = min(self._pace.burst, self._left + (now - self._at) * self._pace.share)
        self._at = now
