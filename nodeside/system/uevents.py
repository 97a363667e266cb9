"""Uevents: what the kernel says when a module or a device comes, goes or is bound.

They come from the kernel itself (pyudev source `kernel`), not from udevd. Events from udevd reach
only the host's network namespace; events from the kernel reach an ordinary pod too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nodeside import log
from nodeside.values import frozen


@frozen
class Uevent:
    """A kernel event, such as `remove` `module` `edu`, or `unbind` `pci` `0000:00:04.0`."""

    action: str
    subsystem: str
    name: str

    def __str__(self) -> str:
        return f"{self.action} {self.subsystem} {self.name}"


class Uevents:
    """Uevents that arrive, read through pyudev."""

    def __init__(self, monitor: Any) -> None:
        self._monitor = monitor

    def fileno(self) -> int:
        return int(self._monitor.fileno())

    def read(self) -> Iterator[Uevent]:
        """Yield every event that has arrived. If some were lost, yield an event that says so."""
        try:
            while (device := self._monitor.poll(timeout=0)) is not None:
                yield Uevent(device.action or "", device.subsystem or "", device.sys_name)
        except OSError as exc:  # ENOBUFS: the queue was full
            log.detail("uevents were lost", why=exc)
            yield Uevent("bind", "pci", "(events were lost)")

    def close(self) -> None:
        """Drop the monitor: pyudev closes the socket with the last reference to it."""
        self._monitor = None


def open_uevents(*subsystems: str) -> Uevents | None:
    """Open the uevents of these subsystems, of all if none is named.

    Returns None, with a log line, if they are not available.
    """
    try:
        import pyudev

        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        for subsystem in subsystems:
            monitor.filter_by(subsystem)
        monitor.start()
    except (ImportError, OSError) as exc:
        log.warning("kernel uevents are not available; polling the driver instead", why=exc)
        return None
    return Uevents(monitor)
