"""Locks between processes: flock(2) with the deadline that it has not by itself.

The kernel releases a lock when the last descriptor of its holder is closed, however the holder
ends. A lock file is never removed: a lock on a removed file excludes nobody.

Stdlib only, like all of the common ground. The toolkit sidecar's lock is of another kind, which
can be asked for without being taken: see `shared.py`.
"""

from __future__ import annotations

import fcntl

from nodeside.clock import Clock

_INTERVAL = 0.02  # seconds between two tries


def take_lock(
    fd: int, *, within: float = 0.0, shared: bool = False, clock: Clock | None = None
) -> bool:
    """Lock an open file or directory; False if others hold it for all of `within` seconds.

    At once if it is free. A shared lock excludes exclusive ones only.
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
