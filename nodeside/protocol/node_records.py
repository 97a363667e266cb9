"""Records about this boot in the host's /run: read with distrust, written by rename.

A record with another boot id is void (a /run that is not a tmpfs, a restored snapshot).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from nodeside import log
from nodeside.errors import NodesideError
from nodeside.protocol.records import decode, encode, publish, read_untrusted
from nodeside.system.clock import Clock
from nodeside.system.files import LeasedFile, disk_errors

R = TypeVar("R")

_LEASE_BROKEN = 60.0  # longer than the kernel's lease-break-time
_RETRY_INTERVAL = 0.02  # seconds between two attempts


def read_record(kind: type[R], path: Path, boot_id: str) -> R | None:
    """Return the record of this boot; None, with a log line, if it cannot be read."""
    try:
        record = read_own(path)
        if record is None or record.get("boot_id") != boot_id:
            return None
        return decode(kind, record, where=path.name)
    except NodesideError as error:
        log.warning("a record cannot be read and counts as absent", path=path, why=error)
        return None


def write_record(path: Path, record: Any) -> None:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    publish(path, encode(record))


def remove_record(path: Path) -> bool:
    """Remove a record; return whether there was one."""
    with disk_errors(path):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
    return True


def read_own(path: Path, *, clock: Clock | None = None) -> dict[str, Any] | None:
    """Read one of our records like `read_untrusted`, but wait until a foreign lease is broken.

    The holder of a lease (fcntl(2), F_SETLEASE) keeps others from opening the file. The kernel
    breaks it within /proc/sys/fs/lease-break-time, 45 s, counted from the first attempt.
    Raises LeasedFile if the lease is still there after 60 s.
    """
    clock = clock or Clock()
    ends = clock.now() + _LEASE_BROKEN
    while True:
        try:
            return read_untrusted(path)
        except LeasedFile:
            if clock.now() >= ends:
                raise
        clock.sleep(_RETRY_INTERVAL)
