"""Look for the devices, in a process of its own, and say what is found as lines of JSON.

Files of devices are read in forked children, and a process that uses gRPC must not fork: the child
of one aborts, or hangs for ever, depending on gRPC's version. So the finder is forked before gRPC
is imported. It looks at an entry of `spec.devices` when the kernel says that a device has changed,
when the ready file has, and from time to time; each entry has a thread, so that files of one that
hang delay no other.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from nodeside import log
from nodeside.child import kill_left_behind
from nodeside.devices.discovery import FoundDevices, discover
from nodeside.devices.identity import DeviceIds
from nodeside.host import Host
from nodeside.ready_file import read_ready, ready_path
from nodeside.records import decode, encode
from nodeside.spec import Driver
from nodeside.spec.devices import Device
from nodeside.uevents import open_uevents

INTERVAL = 30.0  # seconds between two looks without a reason
_TICK = 2.0  # seconds between two looks at the ready file
_SETTLE = 0.1  # seconds from a kernel event to the look: several come at a time
_EVENTS = 1024  # that are read at a time
_CHUNK = 1 << 16
_ENDS = 5.0  # seconds in which the finder ends by itself; a pod has ten


class Finder:
    """The process that looks, and its lines."""

    def __init__(self, driver: Driver, host: Host, *, needs_driver: bool = True) -> None:
        """Fork it. Raises OSError."""
        self.is_running = True
        self._text = bytearray()
        self._lines, writer = os.pipe()
        reader, self._alive = os.pipe()  # the finder ends when this end is closed
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._lines)
            os.close(self._alive)
            _run_and_exit(Looking(driver, host, writer, needs_driver), reader)
        os.close(writer)
        os.close(reader)

    def fileno(self) -> int:
        return self._lines

    def read(self) -> Iterator[FoundDevices]:
        """Yield what was found; call it when there is something to read.

        Raises MalformedRecord.
        """
        chunk = os.read(self._lines, _CHUNK)
        self.is_running = bool(chunk)
        self._text += chunk
        *lines, rest = self._text.split(b"\n")
        self._text = bytearray(rest)
        for line in lines:
            yield decode(FoundDevices, json.loads(line), where="what the finder says")

    def close(self) -> None:
        """End it."""
        os.close(self._alive)
        os.close(self._lines)
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self._pid)
            select.select([descriptor], [], [], _ENDS)
            os.close(descriptor)
            os.kill(self._pid, signal.SIGKILL)  # a thread may hang in a driver's code
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _run_and_exit(looking: Looking, alive: int) -> None:
    """Be the process; never return."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the agent ends it
    try:
        looking.until_closed(alive)
    except BaseException as exc:
        log.traceback(exc)
        os._exit(1)
    kill_left_behind()
    os._exit(0)


@dataclass
class Looking:
    """The looks at all entries of a driver; what is found is written to a descriptor.

    `needs_driver`: devices are unhealthy while the driver is not ready.
    """

    driver: Driver
    host: Host
    writer: int
    needs_driver: bool = True
    _again: list[threading.Event] = field(default_factory=list)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def until_closed(self, alive: int) -> None:
        """Look until the other end of a pipe is closed."""
        uevents = open_uevents(*_subsystems(self.driver.spec.devices))
        ready = self._ready_file()  # before the first look, which is made while it is so
        self._again = [threading.Event() for _ in self.driver.spec.devices]
        for device, again in zip(self.driver.spec.devices, self._again, strict=True):
            threading.Thread(target=self._look_for_ever, args=(device, again), daemon=True).start()
        sources = [alive] if uevents is None else [alive, uevents.fileno()]
        while True:
            found, _, _ = select.select(sources, [], [], _TICK)
            if alive in found:
                return
            events: list[str] = []  # of others, none
            if found and uevents is not None:
                select.select([alive], [], [], _SETTLE)
                events = [str(event) for event in islice(uevents.read(), _EVENTS)]
            before, ready = ready, self._ready_file()
            if events or before != ready:
                log.detail("looking again", events=len(events), first=events[0] if events else "")
                for again in self._again:
                    again.set()

    def _look_for_ever(self, device: Device, again: threading.Event) -> None:
        ids = DeviceIds()
        try:
            while True:
                again.clear()
                self._say(discover(self.host, device, not_ready=self._not_ready(), ids=ids))
                health = device.health
                again.wait(min(INTERVAL, health.interval_seconds) if health else INTERVAL)
        except BaseException as exc:
            log.traceback(exc)
            os._exit(1)

    def _say(self, found: FoundDevices) -> None:
        line = json.dumps(encode(found)).encode() + b"\n"
        with self._writing:
            while line:
                line = line[os.write(self.writer, line) :]

    def _not_ready(self) -> str:
        name = self.driver.name
        ready = not self.needs_driver or read_ready(self.host, name, _boot_id())
        return "" if ready else f"driver {name} is not ready on this node"

    def _ready_file(self) -> tuple[int, ...] | None:
        with suppress(OSError):
            found = ready_path(self.host, self.driver.name).stat()
            return found.st_dev, found.st_ino, found.st_mtime_ns
        return None


def _boot_id() -> str:
    """Return that of this kernel; a pod need not mount the host's /proc for it."""
    return Host().boot_id


def _subsystems(devices: Sequence[Device]) -> Sequence[str]:
    """Return the subsystems whose events concern the devices; none stands for all.

    A node has many events of others: each pod's network interfaces, for one.
    """
    found = {"pci", "platform"}  # of the latter are ports of FPGAs, below a class of another name
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
