"""Records about this boot in the host's /run: read with distrust, written by rename.

A record with another boot id is void (a /run that is not a tmpfs, a restored snapshot).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from nodeside import log
from nodeside.errors import NodesideError
from nodeside.files import disk_errors
from nodeside.leases import read_own
from nodeside.records import decode, encode, publish

R = TypeVar("R")


def read_record(kind: type[R], path: Path, boot_id: str) -> R | None:
    """Return the record of this boot; None, with a log line, if it cannot be read."""
    try:
        record = read_own(path)
        if record is None or record.get("boot_id") != boot_id:
            return None
        return decode(kind, record, where=path.name)
    except NodesideError as error:
        log.warning("a record cannot be read and counts as absent", path=path, error=error)
        return None


def write_record(path: Path, record: Any) -> None:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    publish(path, encode(record))


def remove_record(path: Path) -> bool:
    """Return False if there was none."""
    with disk_errors(path):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
    return True
