"""A clock that tests can replace, and how long to wait before another attempt.

Waits in nodeside go through a `Clock`.

Stdlib only: the modules shared with the toolkit sidecar use it to wait for locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field

from nodeside.values import frozen

_DOUBLINGS = 30  # more would only overflow


@frozen
class Clock:
    """A clock: `now` returns monotonic seconds; `sleep` waits for a number of seconds."""

    now: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)


def backoff(failures: int, first: float, longest: float = float("inf")) -> float:
    """Return seconds: `first` after one failure, doubled with each more, at most `longest`."""
    return min(first * 2.0 ** min(max(0, failures - 1), _DOUBLINGS), longest)
