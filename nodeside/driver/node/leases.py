"""Records of ours that somebody else may read, and so hold with a lease (fcntl(2), F_SETLEASE).

Whoever holds one keeps others from opening the file, for as long as the kernel allows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodeside.clock import Clock
from nodeside.files import LeasedFile
from nodeside.records import read_untrusted

_SECONDS = 60.0  # more than the kernel's lease-break-time
_AGAIN = 0.02  # seconds between two tries


def read_own(path: Path, *, clock: Clock | None = None) -> dict[str, Any] | None:
    """As `read_untrusted`, of ours: a lease of somebody who may read it is waited for.

    The kernel ends it within /proc/sys/fs/lease-break-time, 45 s, counted from the first try.
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
