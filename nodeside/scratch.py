"""Temporary directories that do not outlive their user for long, even one that was killed.

Each holds a lock while it is in use. Whoever makes the next one removes those that nobody holds.
Stdlib only.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeside.filelock import take_lock
from nodeside.files import disk_errors

_PREFIX = "nodeside-scratch-"
_LOCK = ".in-use"
_YOUNG = 60.0  # seconds in which a directory may be there and not locked yet


@contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """A new directory that is removed at the end of the block."""
    parent = Path(tempfile.gettempdir())
    remove_abandoned(parent)
    with disk_errors(parent):
        directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        directory.chmod(0o755)  # vendor code, which runs as another user, works below it
    try:
        with open(directory / _LOCK, "wb") as lock:
            take_lock(lock.fileno())  # at once: nobody takes what is that young
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove what killed processes left in `parent`."""
    for directory in parent.glob(f"{_PREFIX}*"):
        try:
            if time.time() - directory.stat().st_mtime > _YOUNG and _is_abandoned(directory):
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue  # another process was quicker, or it is another user's


def _is_abandoned(directory: Path) -> bool:
    """Anybody may have made it: a link is not followed, a pipe not waited for."""
    fd = os.open(directory / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return take_lock(fd)
    finally:
        os.close(fd)
