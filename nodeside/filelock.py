"""Locks between processes: flock(2) with a timeout, which flock(2) itself does not have.

The kernel releases a lock when the holder's last descriptor is closed, however the holder exits. A
lock file is never removed: a lock on a removed file excludes nobody.

Stdlib only, like everything shared with the toolkit sidecar. The sidecar uses another kind of lock,
which can be tested without taking it: see `shared.py`.
"""

from __future__ import annotations

import fcntl

from nodeside.clock import Clock

_INTERVAL = 0.02  # seconds between two attempts


def take_lock(
    fd: int, *, within: float = 0.0, shared: bool = False, clock: Clock | None = None
) -> bool:
    """Lock an open file or directory; return False if it is still locked after `within` seconds.

    Returns at once if the lock is free. A shared lock only excludes exclusive ones.
    """
    clock = clock or Clock()
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    ends = clock.now() + within
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            left = ends - clock.now()
        if left <= 0:
            return False
        clock.sleep(min(_INTERVAL, left))
