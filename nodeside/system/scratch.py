"""Temporary directories that are cleaned up even if their process is killed.

Each directory is locked while it is in use. Creating one removes all abandoned ones. No other user
can enter one; containers get parts of it by bind mounts.
Stdlib only.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nodeside.errors import NodesideError
from nodeside.system.file_lock import take_lock
from nodeside.system.files import disk_errors

_PREFIX = "nodeside-scratch-"
_LOCK = ".in-use"
_REMOVING = 300.0  # seconds for find
_YOUNG = 60.0  # seconds for which a new directory may still be unlocked


@contextmanager
def scratch_directory(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a directory that is removed at the end of the block, by default in $TMPDIR."""
    parent = parent or Path(tempfile.gettempdir())
    remove_abandoned(parent)
    with disk_errors(parent):
        directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-", dir=parent))
    try:
        with open(directory / _LOCK, "wb") as lock:
            take_lock(lock.fileno())  # succeeds at once: others leave a directory this young alone
            yield directory
    finally:
        with suppress(OSError):
            _remove_scratch(directory)


def remove_abandoned(parent: Path) -> None:
    """Remove the directories that killed processes left in `parent`."""
    for directory in parent.glob(f"{_PREFIX}*"):
        try:
            if time.time() - directory.stat().st_mtime > _YOUNG and _is_abandoned(directory):
                _remove_scratch(directory)
        except OSError:
            continue  # another process was faster, or the directory is another user's


def _is_abandoned(directory: Path) -> bool:
    """Return whether its lock is free. Untrusted: links are not followed, pipes do not block."""
    try:
        fd = os.open(directory / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return take_lock(fd)
    finally:
        os.close(fd)


def _remove_scratch(directory: Path) -> None:
    """Remove a directory, its lock last. What cannot be removed keeps the lock, for a next attempt.

    Untrusted: links are not followed.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in os.listdir(fd):  # noqa: PTH208 - not by its path, which may be a link
            if name != _LOCK:
                _remove_entry(name, fd)
        if set(os.listdir(fd)) - {_LOCK}:  # noqa: PTH208
            _remove_deep(fd)
        if os.listdir(fd) == [_LOCK]:  # noqa: PTH208
            os.unlink(_LOCK, dir_fd=fd)
    finally:
        os.close(fd)
    directory.rmdir()


def _remove_entry(name: str, parent: int) -> None:
    with suppress(OSError, RecursionError):
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)


def _remove_deep(directory: int) -> None:
    """Remove directories that are nested too deep for Python. A build or another user made them."""
    from nodeside.system import process  # late: rarely needed

    argv = ("find", ".", "-mindepth", "1", "!", "-path", f"./{_LOCK}", "-delete")
    with suppress(NodesideError):
        here = Path(f"/proc/self/fd/{directory}")  # the child's, which has the same descriptors
        process.run(argv, cwd=here, timeout=_REMOVING, check=False)
