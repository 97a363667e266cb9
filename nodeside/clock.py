"""A clock that tests can replace; waits in nodeside go through a `Clock`.

Stdlib only: the modules shared with the toolkit sidecar use it to wait for locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field

from nodeside.values import frozen


@frozen
class Clock:
    """A clock: `now` returns monotonic seconds; `sleep` waits for a number of seconds."""

    now: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)
