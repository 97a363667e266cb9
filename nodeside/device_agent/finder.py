"""Looks for devices in threads, and queues what they find for the agent.

Each entry of `spec.devices` has a thread. It looks when the kernel reports a change of a device,
when the ready file changes, and from time to time. A driver's file that hangs delays only its own
entry: forked children (nodeside/system/child.py) read such files, and take no lock that a thread
could hold.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from nodeside import log
from nodeside.device_agent.kept_ids import KeptIds
from nodeside.devices.discovery import FoundDevices, discover_devices
from nodeside.protocol.ready_file import is_ready, ready_path
from nodeside.spec import Driver
from nodeside.spec.devices import Device
from nodeside.system.files import Identity, file_identity
from nodeside.system.host import Host
from nodeside.system.uevents import Uevents, open_uevents

INTERVAL = 30.0  # seconds between two looks without a reason
_TICK = 2.0  # seconds between two looks at the ready file
_SETTLE = 0.1  # seconds from a kernel event to the look: events come in groups
_EVENTS = 1024  # kernel events read at a time
_ENDS = 5.0  # seconds that `close` waits for the listener; a pod has ten to end

News = SimpleQueue[FoundDevices | BaseException | None]
"""The devices found, or the exception that ended a thread; None asks the agent to stop."""


class Finder:
    """The threads that look for the devices of a driver's entries, until `close`.

    `state` is the directory in which ids are kept, if any. With `needs_driver`, devices are
    unhealthy while the driver is not ready.
    """

    def __init__(
        self,
        driver: Driver,
        host: Host,
        news: News,
        *,
        state: Path | None = None,
        needs_driver: bool = True,
    ) -> None:
        self._driver = driver
        self._host = host
        self._news = news
        self._state = state
        self._needs_driver = needs_driver
        self._is_closed = False
        self._closed = os.eventfd(0)  # readable once closed
        self._again = [threading.Event() for _ in driver.spec.devices]
        uevents = open_uevents(*_watched_subsystems(driver.spec.devices))
        ready = self._ready_file()  # before the first look: no change is missed
        self._listener = self._start_thread(self._await_changes, uevents, ready)
        for device, again in zip(driver.spec.devices, self._again, strict=True):
            self._start_thread(self._look_for_ever, device, again)

    def close(self) -> None:
        """End the threads. One that is reading files is not awaited: it ends with the process."""
        self._is_closed = True
        self._look_again()
        os.eventfd_write(self._closed, 1)
        self._listener.join(_ENDS)

    def _start_thread(self, work: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(
            target=self._run_and_report_crash, args=(work, *args), name="finder", daemon=True
        )
        thread.start()
        return thread

    def _run_and_report_crash(self, work: Callable[..., None], *args: object) -> None:
        try:
            work(*args)
        except BaseException as exc:
            self._news.put(exc)

    def _await_changes(self, uevents: Uevents | None, ready: Identity | None) -> None:
        sources = [self._closed] if uevents is None else [self._closed, uevents.fileno()]
        while True:
            found, _, _ = select.select(sources, [], [], _TICK)
            if self._closed in found:
                os.close(self._closed)
                return
            events: list[str] = []
            if found and uevents is not None:
                select.select([self._closed], [], [], _SETTLE)
                events = [str(event) for event in islice(uevents.read(), _EVENTS)]
            before, ready = ready, self._ready_file()
            if events or before != ready:
                log.detail("looking again", events=len(events), first=events[0] if events else "")
                self._look_again()

    def _look_again(self) -> None:
        for again in self._again:
            again.set()

    def _look_for_ever(self, device: Device, again: threading.Event) -> None:
        kept = KeptIds(self._state, device.resource, _boot_id())
        ids = kept.read()
        health = device.health
        while True:
            again.clear()
            if self._is_closed:
                return
            found = discover_devices(self._host, device, not_ready=self._not_ready(), ids=ids)
            kept.write(ids)  # first: the id of an announced device must not change
            self._news.put(found)
            again.wait(min(INTERVAL, health.interval_seconds) if health else INTERVAL)

    def _not_ready(self) -> str:
        name = self._driver.name
        ready = not self._needs_driver or is_ready(self._host, name, _boot_id())
        return "" if ready else f"driver {name} is not ready on this node"

    def _ready_file(self) -> Identity | None:
        return file_identity(ready_path(self._host, self._driver.name))


def _boot_id() -> str:
    """Return the boot id of this kernel, for which a pod need not mount the host's /proc."""
    return Host().boot_id


def _watched_subsystems(devices: Sequence[Device]) -> Sequence[str]:
    """Return the subsystems whose events concern the devices; an empty sequence means all.

    A node has many unrelated events, such as those of each pod's network interfaces.
    """
    found = {"pci", "platform"}  # platform: ports of FPGAs, whose class has another name
    for device in devices:
        if device.discover.nodes:
            return ()
        if device.give.nodes and device.give.nodes.class_:
            found.add(device.give.nodes.class_)
        for pattern in device.discover.sysfs:
            kind, _, rest = pattern.partition("/")
            name = rest.partition("/")[0]
            if kind not in ("class", "bus") or "*" in name:
                return ()
            found.add(name)
    return sorted(found)
