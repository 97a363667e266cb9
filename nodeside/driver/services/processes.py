"""The processes of services, found by a variable that each one inherits.

A service may start processes that leave its process group, and its parent may be gone. Only the
processes of this container are seen, or of the whole node outside of one.

Anybody can set that variable, so it only tells our processes from one another. A process is ours by
what nobody else can choose: it is in the PID namespace of this process, or of one that holds a lock
of the driver, in a directory of root. Containers may ask for the namespace of the node (hostPID):
there, our processes have our user, and are outside of all containers.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nodeside.driver.node.node_lock import lock_holders
from nodeside.driver.node.processes import pod_and_container
from nodeside.system import sysfs
from nodeside.system.clock import Clock
from nodeside.system.host import Host
from nodeside.values import frozen

if TYPE_CHECKING:
    from psutil import Process  # imported late: only where there are services

VARIABLE = "NODESIDE_SERVICE"
_PAUSE = 0.05  # seconds between two looks at processes that are to end
_AFTER_KILL = 5.0  # seconds; a process that is stuck in the kernel does not end
_ENVIRONMENT = 1 << 20  # bytes that are read of one
_PROC = Path("/proc")
_OF_THE_NODE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_REAL_UID = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE)


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


def end_processes(
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

    The driver may be another one: its container holds its lock.
    """
    begins = f"{VARIABLE}={driver}/".encode()
    try:
        with (host.proc / str(pid) / "environ").open("rb") as file:
            says_so = any(each.startswith(begins) for each in file.read(_ENVIRONMENT).split(b"\0"))
    except OSError:
        return False
    return says_so and _is_ours(host.proc, pid, _namespaces_of(host, driver))


def _namespaces_of(host: Host, driver: str) -> frozenset[str]:
    """Return the PID namespaces of this process and of those that work on a driver."""
    holders = (*lock_holders(host, f"{driver}.pod"), *lock_holders(host, driver))
    return frozenset(
        (_pid_namespace(_PROC, "self"), *(_pid_namespace(host.proc, pid) for pid in holders))
    )


def _is_ours(proc: Path, pid: int, namespaces: Collection[str]) -> bool:
    """Return whether a process may be one of ours, whatever it says of itself."""
    namespace = _pid_namespace(proc, pid)
    if namespace != _OF_THE_NODE:
        return bool(namespace) and namespace in namespaces
    user = _REAL_UID.search(sysfs.read(proc / str(pid) / "status") or "")
    outside, own = ("", ""), pod_and_container(sysfs.read(_PROC / "self" / "cgroup") or "")
    container = pod_and_container(sysfs.read(proc / str(pid) / "cgroup") or "")
    return user is not None and int(user[1]) == os.getuid() and container in (outside, own)


def _pid_namespace(proc: Path, pid: int | str) -> str:
    return sysfs.link_name(proc / str(pid) / "ns" / "pid") or ""


def _find_processes(driver: str, service: str, child: int = 0) -> Iterator[Process]:
    """Yield the processes of a service, some of them twice, but none that waits to be reaped."""
    import psutil

    if child:
        with suppress(psutil.Error):
            first = psutil.Process(child)
            for process in (first, *first.children(recursive=True)):
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process
    wanted = f"{driver}/{service}"
    of_node = (
        _pid_namespace(_PROC, "self") == _OF_THE_NODE
    )  # else all that is seen is this container's
    namespaces = _namespaces_of(Host(), driver) if of_node else ()
    mark = f"{VARIABLE}={wanted}".encode()
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):
            # To parse what each process of a node was given would take three times as long.
            with open(f"{_PROC}/{pid}/environ", "rb", buffering=0) as file:
                if mark not in file.readall():
                    continue
            process = psutil.Process(pid)
            says_so = process.environ().get(VARIABLE) == wanted
            if says_so and (not of_node or _is_ours(_PROC, process.pid, namespaces)):
                yield process
