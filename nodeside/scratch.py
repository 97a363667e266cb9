"""Temporary directories that are cleaned up even if their process is killed.

Each directory is locked while it is in use. Creating one removes all abandoned ones.
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
_YOUNG = 60.0  # seconds for which a new directory may still be unlocked


@contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """Create a directory that is removed at the end of the block."""
    parent = Path(tempfile.gettempdir())
    remove_abandoned(parent)
    with disk_errors(parent):
        directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        directory.chmod(0o755)  # vendor code runs as another user and works below it
    try:
        with open(directory / _LOCK, "wb") as lock:
            take_lock(lock.fileno())  # succeeds at once: others leave a directory this young alone
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove the directories that killed processes left in `parent`."""
    for directory in parent.glob(f"{_PREFIX}*"):
        try:
            if time.time() - directory.stat().st_mtime > _YOUNG and _is_abandoned(directory):
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue  # another process was faster, or the directory is another user's


def _is_abandoned(directory: Path) -> bool:
    """Return whether its lock is free. Untrusted: links are not followed, pipes do not block."""
    fd = os.open(directory / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return take_lock(fd)
    finally:
        os.close(fd)
