"""Locks between processes: flock(2) with a timeout, which flock(2) itself does not have.

The kernel releases a lock when the holder's last descriptor is closed, however the holder exits. A
lock file is never removed: a lock on a removed file excludes nobody. Where others may remove it,
`LockFile` notices.

Stdlib only, like everything shared with the toolkit sidecar. The sidecar uses another kind of lock,
which can be tested without taking it: see `shared_directory.py`.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from nodeside.system.clock import Clock
from nodeside.system.files import file_identity, identity_from_stat

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


class LockFile:
    """A lock on a file in a directory that belongs to somebody else, who may remove files there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    @property
    def is_lost(self) -> bool:
        """Whether it was taken, and the file is no longer there or is another one."""
        return self._fd is not None and file_identity(self._path) != identity_from_stat(
            os.fstat(self._fd)
        )

    @property
    def is_held(self) -> bool:
        return self._fd is not None

    def take(self) -> bool:
        """Take it, unless it is held already; return whether it is held. Raises OSError."""
        if self._fd is None:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if take_lock(fd):
                    self._fd, fd = fd, -1
            finally:
                if fd >= 0:
                    os.close(fd)
        return self.is_held

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
