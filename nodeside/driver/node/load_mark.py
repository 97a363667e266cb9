"""The mark of a load: on the node's disk before it, gone once the modules have passed validation.

    /var/lib/nodeside/loading/<driver>.json   LoadMark

A mark of another boot means that the kernel ended in between: a panic, a reset, a power cut. The
mark of this boot means nothing of that kind: the process that loaded was killed, and a later one
judges what it left. A driver container that ends in order removes it, so an ordered reboot after a
failed validation is not taken for a death.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nodeside import log
from nodeside.errors import NodesideError
from nodeside.protocol.node_records import read_own, remove_record, write_record
from nodeside.protocol.records import decode
from nodeside.system.host import Host
from nodeside.values import frozen

_LATEST = 1 << 40  # seconds since the epoch; a disk may say anything


@frozen
class LoadMark:
    """What was about to be loaded, in which boot. `began` is in seconds since the epoch.

    `ordered` is the time of the newest order to repeat a load that was known when this one began.
    """

    driver: str
    version: str
    key: str
    revision: str
    boot_id: str
    kernel: str
    began: float
    parameters: Mapping[str, Mapping[str, str]]
    ordered: float = 0.0

    def is_same_load(self, other: LoadMark) -> bool:
        """Return whether the same bundle would be loaded, with the same parameters."""
        mine, others = (
            (mark.key, mark.revision, {name: dict(v) for name, v in mark.parameters.items()})
            for mark in (self, other)
        )
        return mine == others


def mark_path(host: Host, driver: str) -> Path:
    return host.loading / f"{driver}.json"


def write_mark(host: Host, mark: LoadMark) -> None:
    """Write the mark so that it survives the death of the kernel. Raises NoSpace, SystemRefused."""
    write_record(mark_path(host, mark.driver), mark)


def read_mark(host: Host, driver: str) -> LoadMark | None:
    """Return the mark, of whatever boot; None, with a log line, if it cannot be read."""
    path = mark_path(host, driver)
    try:
        record = read_own(path)
        mark = None if record is None else decode(LoadMark, record, where=path.name)
        return mark if mark and 0 <= mark.began < _LATEST else None
    except (NodesideError, OSError) as error:
        log.warning("a mark of a load cannot be read and counts as absent", path=path, why=error)
        return None


def clear_mark(host: Host, driver: str, *, boot_id: str = "") -> None:
    """Remove the mark; with `boot_id`, only one of that boot. A failure is only logged."""
    if boot_id:
        mark = read_mark(host, driver)
        if mark is None or mark.boot_id != boot_id:
            return
    try:
        remove_record(mark_path(host, driver))
    except NodesideError as error:
        log.warning(str(error), driver=driver, reason=error.reason, hint=error.hint)
