"""How often the controller looks, how much of a processor that may take, and that it still does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

STUCK = 300.0  # seconds without a round of the main loop, after which a restart would help


@dataclass
class Heartbeat:
    """When the main loop came round last. `busy` while it works, not while it waits."""

    now: Callable[[], float] = time.monotonic
    _since: float | None = field(default=None, init=False)

    def begin(self) -> None:
        self._since = self.now()

    def end(self) -> None:
        self._since = None

    @property
    def busy_for(self) -> float:
        since = self._since
        return 0.0 if since is None else self.now() - since


@dataclass(frozen=True)
class LoopTimings:
    """In seconds. `settle`: news seldom come alone; `between`: from one plan to the next, or longer
    where planning takes more than a `share` of a processor for long, but no longer than `longest`;
    `burst`: the processor time that it may take beyond that, when it took none for a while.

    `echo`: how long to wait for our own writes to come back before planning again. `counts`: how
    often a status is written in which nothing but counts changed. `refresh`: how
    long a new leader tries to have everything up to date, `optional`: also the kinds that are
    optional; `sync`: how often it looks meanwhile whether it still leads.
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
    """Processor time that plans may take: it grows by a share of the time that passes.

    So a node that changes now and then is served at once, in a cluster of any size, while a rollout
    over thousands of nodes, in which something changes all the time, is looked at now and then.
    """

    def __init__(self, pace: LoopTimings, now: float) -> None:
        self._pace = pace
        self._left = pace.burst
        self._at = now
        self._last = 0.0

    def spend(self, took: float, now: float) -> None:
        """A plan took so much. One that took more than the one before, as for a new Driver, counts
        as that one did."""
        self._grow(now)
        least = -self._pace.longest * self._pace.share
        self._left = max(least, self._left - min(self._last, took))
        self._last = took

    def wait(self, now: float) -> float:
        """Seconds until the next plan."""
        self._grow(now)
        return max(0.0, -self._left / self._pace.share)

    def _grow(self, now: float) -> None:
        self._left = min(self._pace.burst, self._left + (now - self._at) * self._pace.share)
        self._at = now
