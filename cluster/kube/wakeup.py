"""A signal between threads: something changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LONGEST = 3600.0  # seconds


class Wakeup:
    """A signal that something changed. Any thread may call `wake`; one thread waits."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._changed = threading.Condition()
        self._woken = False

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def wait(self, timeout: float | None) -> bool:
        """Wait for `wake`, at most an hour, then clear the signal. Return whether it was set.

        A longer timeout may exceed what the operating system accepts.
        """
        limit = _LONGEST if timeout is None else min(timeout, _LONGEST)
        with self._changed:
            woken = self._changed.wait_for(lambda: self._woken, limit)
            self._woken = False
            return woken
