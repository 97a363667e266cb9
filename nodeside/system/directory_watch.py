"""Detection of directory changes within milliseconds, without fast polling and without ctypes.

The kernel's dnotify (Documentation/filesystems/dnotify.rst) sends SIGIO when an entry of a
directory is created, renamed into it, or modified. It only needs the standard library and costs
nothing while the directory is idle. Without dnotify, `wait` falls back to polling.

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

_SLOW = 1.0  # polling interval in seconds with dnotify: a safety net for changes that it misses
_FAST = 0.02  # polling interval in seconds without dnotify

_F_SETOWN_EX = 15  # fcntl(2); the fcntl module has no name for it
_EVENTS = fcntl.DN_CREATE | fcntl.DN_RENAME | fcntl.DN_MODIFY | fcntl.DN_DELETE | fcntl.DN_MULTISHOT


class DirectoryWatch:
    """A watch on several directories, used as a context manager.

    SIGIO is blocked in this thread inside the context and consumed with sigtimedwait, so a change
    between a check and a wait is never lost. Enter the context before the first check.
    """

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories = list(directories)
        self._fds: list[int] = []
        self._works = True
        self._previous: Any = None

    def __enter__(self) -> DirectoryWatch:
        # The default action of SIGIO ends the process, and other threads may not block SIGIO, so
        # a handler is needed.
        try:
            self._previous = signal.signal(signal.SIGIO, lambda *_: None)
        except ValueError:  # not the main thread: only polling is safe
            self._works = False
            return self
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
        for path in self._directories:
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
        """Watch another directory. A missing directory is ignored."""
        if not self._works:
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._fds.append(fd)
            try:
                # Deliver to this thread, which blocks the signal; in another thread, the handler
                # would consume it.
                fcntl.fcntl(fd, _F_SETOWN_EX, struct.pack("ii", 0, threading.get_native_id()))
                fcntl.fcntl(fd, fcntl.F_NOTIFY, _EVENTS)
            except OSError:
                self._works = False

    def wait(self, timeout: float) -> None:
        """Wait for a change, at most `timeout` seconds, and at most the polling interval."""
        if not self._works or not self._fds:
            time.sleep(max(0.0, min(timeout, _FAST)))
            return
        signal.sigtimedwait({signal.SIGIO}, max(0.0, min(timeout, _SLOW)))
