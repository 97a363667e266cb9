"""The lock of a toolkit sidecar, held where no sidecar runs."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from nodeside.protocol.shared_directory import SharedDir
from nodeside.toolkit_sidecar.supervisor import _WRITE_LOCK


@contextmanager
def hold_sidecar_lock(shared: SharedDir) -> Iterator[bool]:
    """Hold the sidecar's lock while the block runs; yield False if another sidecar has it."""
    with open(shared.lock, "a+b") as file:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WRITE_LOCK)
        except (BlockingIOError, PermissionError):
            yield False
            return
        yield True
