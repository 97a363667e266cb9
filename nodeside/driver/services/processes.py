"""The processes of services, found by a variable that each one inherits.

A service may start processes that leave its process group, and its parent may be gone. Only the
processes of this container are seen, or of the whole node outside of one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeside.system.clock import Clock
from nodeside.system.host import Host
from nodeside.values import frozen

if TYPE_CHECKING:
    from psutil import Process  # imported late: only where there are services

VARIABLE = "NODESIDE_SERVICE"
_PAUSE = 0.05  # seconds between two looks at processes that are to end
_AFTER_KILL = 5.0  # seconds; a process that is stuck in the kernel does not end
_ENVIRONMENT = 1 << 20  # bytes that are read of one


@frozen
class Running:
    """The processes of a service; `memory` is in bytes, `processor` in seconds.

    Memory that several of them share is counted for each.
    """

    pids: tuple[int, ...] = ()
    memory: int = 0
    processor: float = 0.0


def mark_variables(driver: str, service: str) -> dict[str, str]:
    """Return the variable that tells the processes of a service from others."""
    return {VARIABLE: f"{driver}/{service}"}


def find_running(driver: str, service: str) -> Running:
    """Return what runs of a service, and what it uses."""
    import psutil

    pids, memory, processor = [], 0, 0.0
    for process in sorted(_find_processes(driver, service), key=lambda each: each.pid):
        with suppress(psutil.Error):
            times = process.cpu_times()
            memory += process.memory_info().rss
            processor += times.user + times.system
            pids.append(process.pid)
    return Running(tuple(pids), memory, round(processor, 2))


def end(
    driver: str, service: str, seconds: float, clock: Clock, *, child: int = 0
) -> tuple[int, ...]:
    """End all processes of a service: SIGTERM, and after some seconds SIGKILL.

    `child` is its first process, which may have removed the variable. Returns those that do not end
    even then.
    """
    import psutil

    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, _AFTER_KILL)):
        signalled: set[Process] = set()
        deadline = clock.now() + patience
        while left := set(_find_processes(driver, service, child)):
            for process in left - signalled:  # also those that have been started meanwhile
                with suppress(psutil.Error):
                    process.send_signal(number)
            signalled |= left
            if clock.now() >= deadline:
                break
            clock.sleep(_PAUSE)
        else:
            return ()
    return tuple(sorted(each.pid for each in set(_find_processes(driver, service, child))))


def is_of_a_service(host: Host, pid: int, driver: str) -> bool:
    """Return whether a process of the node, by the host's number of it, is of a driver's services.

    Any process may say so of itself: that it holds a device is then found out a moment later.
    """
    begins = f"{VARIABLE}={driver}/".encode()
    try:
        with (host.proc / str(pid) / "environ").open("rb") as file:
            return any(each.startswith(begins) for each in file.read(_ENVIRONMENT).split(b"\0"))
    except OSError:
        return False


def _find_processes(driver: str, service: str, child: int = 0) -> Iterator[Process]:
    """Yield what runs of a service, some of it twice. Processes that wait to be reaped do not."""
    import psutil

    if child:
        with suppress(psutil.Error):
            first = psutil.Process(child)
            for process in (first, *first.children(recursive=True)):
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process
    wanted = f"{driver}/{service}"
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(VARIABLE) == wanted:
                yield process
