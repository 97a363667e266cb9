"""The ready file: it exists exactly while this driver is seen to work on this node.

The ready file is the health check, and it costs nothing: a consumer mounts /run/nodeside read-only
and waits for `<driver>/ready`. The driver pod itself needs no probe: an exec probe starts a process
every few seconds on every node, an HTTP probe needs a server and a port, and neither would tell the
kubelet more than the state label tells the cluster. There is no liveness probe either, since
restarting its container does not help a failed driver.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from nodeside import log
from nodeside.errors import NodesideError
from nodeside.protocol.node_records import read_record, remove_record, write_record
from nodeside.protocol.node_status import Rung
from nodeside.protocol.records import decode, read_untrusted
from nodeside.system.files import LeasedFile
from nodeside.system.host import Host
from nodeside.values import frozen


@frozen
class ReadyRecord:
    """The `ready` file: this driver works on this kernel in this boot.

    `since` is wall-clock; `stages` are those that led to it, in seconds; `services` says how often
    each was started again.
    """

    driver: str
    version: str
    kernel: str
    boot_id: str
    source: Rung
    modules: tuple[str, ...]
    since: float
    stages: Mapping[str, float] = field(default_factory=dict)
    services: Mapping[str, int] = field(default_factory=dict)


def ready_path(host: Host, driver: str) -> Path:
    return host.run / driver / "ready"


def read_ready(host: Host, driver: str, boot_id: str) -> ReadyRecord | None:
    """Return the ready record of this boot, or None."""
    return read_record(ReadyRecord, ready_path(host, driver), boot_id)


def is_ready(host: Host, driver: str, boot_id: str) -> bool:
    """Return whether the driver is ready; do not wait for a reader who holds a lease on the file.

    A consumer can take a lease again each time that it is broken, and so keep the record from being
    read for ever. What is on a tmpfs was written in this boot, so there it is enough that the file
    exists.
    """
    path = ready_path(host, driver)
    try:
        record = read_untrusted(path)
        if record is None or record.get("boot_id") != boot_id:
            return False
        decode(ReadyRecord, record, where=path.name)
    except LeasedFile:
        return _is_on_tmpfs(path) or read_ready(host, driver, boot_id) is not None
    except NodesideError as error:
        log.warning("a record cannot be read and counts as absent", path=path, why=error)
        return False
    return True


def write_ready(host: Host, record: ReadyRecord) -> bool:
    """Write the ready file for consumers; return False if it was already up to date.

    An equivalent file keeps its `since`, `source` and `stages`: the origin of the modules does not
    change when a later run finds them loaded.
    """
    old = read_ready(host, record.driver, record.boot_id)
    if old is not None and _identity_fields(old) == _identity_fields(record):
        return False
    write_record(ready_path(host, record.driver), record)
    return True


def clear_ready(host: Host, driver: str) -> bool:
    """Remove the ready file; return False if there was none."""
    return remove_record(ready_path(host, driver))


def _is_on_tmpfs(path: Path) -> bool:
    """Return whether a file, not what a link in its place leads to, is on a tmpfs; proc(5)."""
    with suppress(OSError, ValueError):
        device = path.lstat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            mount, _, kind = line.partition(" - ")
            if mount.split()[2] == wanted:
                return kind.split()[0] == "tmpfs"
    return False


def _identity_fields(record: ReadyRecord) -> tuple[object, ...]:
    return record.version, record.kernel, record.modules, dict(record.services)
