"""Notice a change in a directory within milliseconds, without polling fast and without ctypes.

The kernel's dnotify (Documentation/filesystems/dnotify.rst) sends SIGIO when an entry of a
directory is created, renamed into it, or modified. It needs nothing but the standard library and
costs nothing while nothing happens. Where it is absent, `wait` falls back to a poll.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

_SLOW = 1.0  # seconds between looks where dnotify works: a net for what it cannot see
_FAST = 0.02  # seconds between looks where it does not

_F_SETOWN_EX = 15  # fcntl(2); the fcntl module has no name for it
_EVENTS = fcntl.DN_CREATE | fcntl.DN_RENAME | fcntl.DN_MODIFY | fcntl.DN_DELETE | fcntl.DN_MULTISHOT


class DirectoryWatch:
    """Wait for a change in any of some directories. Use as a context manager.

    SIGIO is blocked in this thread while the object lives, and taken with sigtimedwait, so a change
    between a look and a wait is never lost. Create it before the first look.
    """

    def __init__(self, directories: Iterable[Path]) -> None:
        self._wanted = list(directories)
        self._fds: list[int] = []
        self._works = True
        self._previous: Any = None

    def __enter__(self) -> DirectoryWatch:
        # A handler, since the default action of SIGIO is to end the process, and another thread
        # may not block it.
        try:
            self._previous = signal.signal(signal.SIGIO, lambda *_: None)
        except ValueError:  # not the main thread: only polling is safe
            self._works = False
            return self
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
        for path in self._wanted:
            self.add(path)
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)
        if self._previous is None:
            return
        while signal.sigtimedwait({signal.SIGIO}, 0):
            pass
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
        signal.signal(signal.SIGIO, self._previous)

    def add(self, directory: Path) -> None:
        """Watch one directory more. A directory that is not there is ignored."""
        if not self._works:
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._fds.append(fd)
            try:
                # To this thread, which blocks the signal; another thread's handler would eat it.
                fcntl.fcntl(fd, _F_SETOWN_EX, struct.pack("ii", 0, threading.get_native_id()))
                fcntl.fcntl(fd, fcntl.F_NOTIFY, _EVENTS)
            except OSError:
                self._works = False

    def wait(self, timeout: float) -> None:
        """Return at a change, after `timeout` seconds, or after the look interval."""
        if not self._works or not self._fds:
            time.sleep(max(0.0, min(timeout, _FAST)))
            return
        signal.sigtimedwait({signal.SIGIO}, max(0.0, min(timeout, _SLOW)))
