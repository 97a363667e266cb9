"""What stands in the host's /run: the ready file, loaded.json, and the locks of a driver.

    /run/nodeside/                 a tmpfs of the host: all of it is gone at reboot by nature
      <driver>/ready               ReadyRecord; there exactly while readiness is observed
      <driver>/loaded.json         where older versions keep it, read as long as it is there
      <driver>.lock, …             where older versions lock, see `node_lock.py`
    /run/nodeside-locks/           no consumer of the driver mounts it
      <driver>.lock                locked (flock) by the one actor; says who that is; never removed
      <driver>.loaded.json         LoadedRecord: what nodeside loaded in this boot, as asked
      <driver>.pod.lock            likewise, by the one pod whose turn it is, for as long as it runs

Records appear by rename. One whose boot id is not this boot's is void (a /run that is no tmpfs, a
restored snapshot). Written under the lock only. The ready file is read by anybody; loaded.json is
not, since whoever can read a file of its own user can hold it with a lease, and without it modules
would be somebody else's.

The ready file is the health check, and it costs nothing: a consumer mounts /run/nodeside read-only
and waits for `<driver>/ready`. The driver pod itself needs no probe: an exec probe starts a process
every few seconds on every node, an HTTP probe needs a server and a port, and neither would tell the
kubelet more than the state label tells the cluster. A driver that failed is not helped by
restarting its container, so there is no liveness probe either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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
    """`ready`: this driver works, on this kernel, in this boot. `since` is the wall clock."""

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
    """Where older versions keep it, and a pod of an older controller still does."""
    return host.run / driver / "loaded.json"


def read_ready(host: Host, driver: str, boot_id: str) -> ReadyRecord | None:
    """The ready file of this boot, or None."""
    return _read(ReadyRecord, ready_path(host, driver), boot_id)


def write_ready(host: Host, record: ReadyRecord) -> bool:
    """Make the driver ready for its consumers; False if the file said so already.

    A file that says the same is left alone, with its `since` and its `source`: how the modules
    came here does not change because they were found loaded later.
    """
    old = read_ready(host, record.driver, record.boot_id)
    if old is not None and _same(old, record):
        return False
    _write(ready_path(host, record.driver), record)
    return True


def clear_ready(host: Host, driver: str) -> bool:
    """Take the ready file away; False if there was none."""
    return _remove(ready_path(host, driver))


def read_loaded(host: Host, driver: str, boot_id: str) -> LoadedRecord | None:
    """What nodeside loaded in this boot, or None."""
    # Who writes the one removes the other: where both are, an older version wrote later.
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
    """Forget what was loaded, after it was unloaded; False if there was nothing."""
    former = _remove(former_loaded_path(host, driver))
    return _remove(loaded_path(host, driver)) or former


@contextmanager
def hold_lock(
    host: Host, driver: str, *, timeout: float, clock: Clock | None = None
) -> Iterator[None]:
    """Be the one actor for this driver on this node while the block runs.

    Waits up to `timeout` seconds, then raises Locked, which names the holder. The kernel releases
    the lock when the holder ends, however it ends.
    """
    with node_lock(host, driver, f"driver {driver}", timeout=timeout, clock=clock):
        yield


@contextmanager
def hold_pod_lock(
    host: Host, driver: str, *, timeout: float, clock: Clock | None = None
) -> Iterator[None]:
    """Be the one pod of this driver on this node while the block runs.

    A pod takes it before its first act and keeps it to its end. So of two pods on one node, as
    where a revision replaces another, the later one waits until the earlier one has ended, and
    neither takes back what the other did. Commands by hand do not ask for it.
    """
    with node_lock(host, f"{driver}.pod", f"driver {driver}", timeout=timeout, clock=clock):
        yield


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
    document: Mapping[str, Any] = encode(record)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    publish(path, document)


def _remove(path: Path) -> bool:
    with disk_errors(path):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
    return True
