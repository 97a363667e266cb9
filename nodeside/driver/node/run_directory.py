"""Files in the host's /run: the ready file, loaded.json, and the locks of a driver.

    /run/nodeside/                 a tmpfs of the host, so everything is gone after a reboot
      <driver>/ready               ReadyRecord; exists exactly while readiness is observed
      <driver>/loaded.json         the record of older versions, read as long as it exists
      <driver>.lock, …             the locks of older versions, see `node_lock.py`
    /run/nodeside-locks/           not mounted by consumers of the driver
      <driver>.lock                locked (flock) by the one actor; names it; never removed
      <driver>.loaded.json         LoadedRecord: the modules that nodeside loaded in this boot
      <driver>.pod.lock            locked by the one active pod for as long as it runs

Records are published by rename, and only under the lock. A record with another boot id is void (a
/run that is not a tmpfs, a restored snapshot). Anyone may read the ready file, but not loaded.json:
a process with the file's owner uid that can read it can block it with a lease, and without the
record nodeside would treat its modules as foreign.

The ready file is the health check, and it costs nothing: a consumer mounts /run/nodeside read-only
and waits for `<driver>/ready`. The driver pod itself needs no probe: an exec probe starts a process
every few seconds on every node, an HTTP probe needs a server and a port, and neither would tell the
kubelet more than the state label tells the cluster. There is no liveness probe either, since
restarting its container does not help a failed driver.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nodeside import log
from nodeside.clock import Clock
from nodeside.contract import LoadedRecord, Rung
from nodeside.driver.node.leases import read_own
from nodeside.driver.node.node_lock import make_directory, node_lock
from nodeside.errors import NodesideError
from nodeside.files import disk_errors
from nodeside.host import Host
from nodeside.records import decode, encode, publish

R = TypeVar("R", "ReadyRecord", LoadedRecord)


@dataclass(frozen=True)
class ReadyRecord:
    """The `ready` file: this driver works on this kernel in this boot. `since` is wall-clock."""

    driver: str
    version: str
    kernel: str
    boot_id: str
    source: Rung
    modules: tuple[str, ...]
    since: float


def ready_path(host: Host, driver: str) -> Path:
    return host.run / driver / "ready"


def loaded_path(host: Host, driver: str) -> Path:
    return host.locks / f"{driver}.loaded.json"


def former_loaded_path(host: Host, driver: str) -> Path:
    """Return the path of loaded.json in older versions and in pods of an older controller."""
    return host.run / driver / "loaded.json"


def read_ready(host: Host, driver: str, boot_id: str) -> ReadyRecord | None:
    """Return the ready record of this boot, or None."""
    return _read(ReadyRecord, ready_path(host, driver), boot_id)


def write_ready(host: Host, record: ReadyRecord) -> bool:
    """Write the ready file for consumers; return False if it was already up to date.

    An equivalent file keeps its `since` and `source`: the origin of the modules does not change
    when a later run finds them loaded.
    """
    old = read_ready(host, record.driver, record.boot_id)
    if old is not None and _same(old, record):
        return False
    _write(ready_path(host, record.driver), record)
    return True


def clear_ready(host: Host, driver: str) -> bool:
    """Remove the ready file; return False if there was none."""
    return _remove(ready_path(host, driver))


def read_loaded(host: Host, driver: str, boot_id: str) -> LoadedRecord | None:
    """Return the record of what nodeside loaded in this boot, or None."""
    # Writing the current record removes the former. If both exist, an older version wrote last.
    former = _read(LoadedRecord, former_loaded_path(host, driver), boot_id)
    return former or _read(LoadedRecord, loaded_path(host, driver), boot_id)


def write_loaded(host: Host, record: LoadedRecord) -> None:
    former = former_loaded_path(host, record.driver)
    if not make_directory(host.locks):
        _write(former, record)
        return
    _write(loaded_path(host, record.driver), record)
    _remove(former)


def clear_loaded(host: Host, driver: str) -> bool:
    """Remove the record after an unload; return False if there was none."""
    former = _remove(former_loaded_path(host, driver))
    return _remove(loaded_path(host, driver)) or former


def hold_lock(
    host: Host, driver: str, *, timeout: float, clock: Clock | None = None
) -> AbstractContextManager[None]:
    """Hold the driver's lock on this node while the block runs, as its only actor.

    Waits up to `timeout` seconds, then raises Locked, which names the holder. The kernel releases
    the lock when the holder exits for any reason.
    """
    return node_lock(host, driver, f"driver {driver}", timeout=timeout, clock=clock)


def hold_pod_lock(
    host: Host, driver: str, *, timeout: float, clock: Clock | None = None
) -> AbstractContextManager[None]:
    """Hold the driver's pod lock on this node while the block runs, as its only active pod.

    A pod takes it before its first action and keeps it until it exits. So if two pods run on one
    node, as when one revision replaces another, the later pod waits until the earlier one has
    exited, and neither reverts the other's work. Manual commands do not take it.
    """
    return node_lock(host, f"{driver}.pod", f"driver {driver}", timeout=timeout, clock=clock)


def _same(old: ReadyRecord, new: ReadyRecord) -> bool:
    return (old.version, old.kernel, old.modules) == (new.version, new.kernel, new.modules)


def _read(kind: type[R], path: Path, boot_id: str) -> R | None:
    try:
        record = read_own(path)
        if record is None or record.get("boot_id") != boot_id:
            return None
        return decode(kind, record, where=path.name)
    except NodesideError as error:
        log.warning("a record cannot be read and counts as absent", path=path, error=error)
        return None


def _write(path: Path, record: ReadyRecord | LoadedRecord) -> None:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    publish(path, encode(record))


def _remove(path: Path) -> bool:
    with disk_errors(path):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
    return True
