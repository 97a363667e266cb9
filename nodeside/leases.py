"""Reads of our own records despite leases (fcntl(2), F_SETLEASE) that other readers may hold.

A lease holder keeps others from opening the file, for as long as the kernel allows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodeside.clock import Clock
from nodeside.files import LeasedFile
from nodeside.records import read_untrusted

_SECONDS = 60.0  # longer than the kernel's lease-break-time
_AGAIN = 0.02  # seconds between two attempts


def read_own(path: Path, *, clock: Clock | None = None) -> dict[str, Any] | None:
    """Read one of our records like `read_untrusted`, but wait until a foreign lease is broken.

    The kernel breaks it within /proc/sys/fs/lease-break-time, 45 s, counted from the first attempt.
    Raises LeasedFile if the lease is still there after 60 s.
    """
    clock = clock or Clock()
    ends = clock.now() + _SECONDS
    while True:
        try:
            return read_untrusted(path)
        except LeasedFile:
            if clock.now() >= ends:
                raise
        clock.sleep(_AGAIN)
