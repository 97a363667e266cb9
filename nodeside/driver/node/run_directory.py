"""Files in the host's /run: the ready file, loaded.json, and the locks of a driver.

    /run/nodeside/                 a tmpfs of the host, so everything is gone after a reboot
      <driver>/ready               see nodeside/protocol/ready_file.py
      <driver>/loaded.json         the record of older versions, read as long as it exists
      <driver>.lock, …             the locks of older versions, see `node_lock.py`
    /run/nodeside-locks/           not mounted by consumers of the driver
      <driver>.lock                locked (flock) by the one actor; names it; never removed
      <driver>.loaded.json         LoadedRecord: the modules that nodeside loaded in this boot
      <driver>.symvers             what they export, see `ladder/exported_symbols.py`
      <driver>.current.json         since when its files are current, see `userspace/versions.py`
      <driver>.leaving.json        it is about to unload, see `bringup/neighbours.py`
      <driver>.pod.lock            locked by the one active pod for as long as it runs

Records are published by rename, and only under the lock. A record with another boot id is void (a
/run that is not a tmpfs, a restored snapshot). Anyone may read the ready file, but not loaded.json:
a process with the file's owner uid that can read it can block it with a lease, and without the
record nodeside would treat its modules as foreign.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from nodeside.driver.node.loaded_record import Cleared, LoadedRecord
from nodeside.driver.node.node_lock import make_directory, node_lock
from nodeside.protocol.node_records import read_record, remove_record, write_record
from nodeside.system.clock import Clock
from nodeside.system.host import Host


def loaded_path(host: Host, driver: str) -> Path:
    return host.locks / f"{driver}.loaded.json"


def former_loaded_path(host: Host, driver: str) -> Path:
    """Return the path of loaded.json in older versions and in pods of an older controller."""
    return host.run / driver / "loaded.json"


def read_loaded(host: Host, driver: str, boot_id: str) -> LoadedRecord | None:
    """Return the record of what nodeside loaded in this boot, or None."""
    # Writing the current record removes the former. If both exist, an older version wrote last.
    former = read_record(LoadedRecord, former_loaded_path(host, driver), boot_id)
    return former or read_record(LoadedRecord, loaded_path(host, driver), boot_id)


def write_loaded(host: Host, record: LoadedRecord) -> None:
    former = former_loaded_path(host, record.driver)
    if not make_directory(host.locks):
        write_record(former, record)
        return
    write_record(loaded_path(host, record.driver), record)
    remove_record(former)


def clear_loaded(host: Host, driver: str) -> bool:
    """Remove the record after an unload; return False if there was none."""
    former = remove_record(former_loaded_path(host, driver))
    return remove_record(loaded_path(host, driver)) or former


def write_cleared(
    host: Host,
    driver: str,
    record: LoadedRecord | None,
    left: Cleared,
    *,
    awaits: tuple[str, ...] = (),
) -> None:
    """Keep what is left of what was cleared for a driver without loaded modules, if anything is.

    `awaits` are the drivers that are replaced, after which this one is loaded again.
    """
    if record is not None and not left.is_empty:
        only = replace(record, driver=driver, cleared=left).of_cleared_only
        write_loaded(host, replace(only, awaits=awaits))
    else:
        clear_loaded(host, driver)


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
