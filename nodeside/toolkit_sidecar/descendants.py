"""Kills every process that a build started, however it forked.

The sidecar makes itself a child subreaper (prctl(2)): a process that detaches from its parent, its
group and its session becomes the sidecar's own child instead of init's, so a walk down the process
tree finds it. Where prctl or /proc is missing, the mark in the environment and the process group
remain.

ctypes is imported on the first build only, so an idle sidecar does not pay for it.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeside import log
from nodeside.toolkit_sidecar.memory import be_killed_first

MARK = "NODESIDE_BUILD"  # environment variable of every build process: its out directory

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PATIENCE = 5.0  # seconds for processes to die; only one stuck in the kernel takes longer
_SHOWN = 20  # pids in a log line
_LARGEST_FILE = 8 << 30  # bytes: no build makes a larger one


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent dies, however the parent dies."""
    libc = _libc()
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the prctl, and a stranger adopted us
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the one that adopts its orphaned descendants."""
    libc = _libc()
    if libc is None or libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        log.warning("cannot become a child subreaper: a detached build process may survive")


def enclosure() -> Callable[[], None]:
    """Return the function that a build's first process runs between fork and exec.

    The process then dies with the sidecar, and before the sidecar if memory runs out. It cannot
    gain privileges through a set-uid program, cannot write a core file or an endless file, and
    receives the signals that the sidecar keeps blocked.
    """
    libc = _libc()
    parent = os.getpid()

    def enter() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
        be_killed_first()
        _lower(resource.RLIMIT_CORE, 0)
        _lower(resource.RLIMIT_FSIZE, _LARGEST_FILE)
        if libc is not None:
            libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died between the fork and the prctl
            os._exit(1)

    return enter


def descendants(of: int = 0) -> frozenset[int]:
    """Return the pids of all processes below this one, or below process `of`."""
    children: dict[int, list[int]] = {}
    for pid in _processes():
        with suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            children.setdefault(parent_of(stat), []).append(pid)
    pids: set[int] = set()
    waiting = [of or os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        pids.update(below)
        waiting += below
    return frozenset(pids)


def kill_descendants(mark: str, spared: frozenset[int]) -> None:
    """Kill and reap all descendants except those `spared`, and every process that carries `mark`.

    Processes that die pass their children to us, so this repeats until none is left.
    """
    _kill_all(lambda: (descendants() - spared) or _marked(mark))


def kill_marked(prefix: str) -> int:
    """Kill what an earlier sidecar's builds left behind. Return the number of processes."""
    left = _marked(prefix)
    _kill(left)
    return len(left)


def kill_others(keeper: int) -> int:
    """Kill all processes below our parent except us. Return the number of processes.

    Processes that an earlier worker left there may have removed their mark. A shell that `kubectl
    exec` starts has no parent in the container, so it survives.
    """
    return _kill_all(lambda: descendants(keeper) - {os.getpid()})


def _kill_all(find: Callable[[], frozenset[int]]) -> int:
    """Kill and reap what `find` returns until it returns nothing. Return how many were killed."""
    deadline = time.monotonic() + _PATIENCE
    killed: set[int] = set()
    while left := find():
        _kill(left)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        killed |= left
        if time.monotonic() > deadline:
            shown = " ".join(map(str, sorted(left)[:_SHOWN]))
            log.warning("processes of the build do not die", count=len(left), pids=shown)
            break
        time.sleep(0.001)
    return len(killed)


def parent_of(stat: str) -> int:
    """Return the parent's pid from `/proc/<pid>/stat`, whose command may contain any character."""
    return int(stat.rpartition(")")[2].split()[1])


def _marked(prefix: str) -> frozenset[int]:
    """Return the other processes whose environment has a mark that starts with `prefix`."""
    variable = f"{MARK}={prefix}".encode()
    pids: set[int] = set()
    for pid in _processes():
        with suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if pid != os.getpid() and any(item.startswith(variable) for item in variables):
                pids.add(pid)
    return frozenset(pids)


def _processes() -> list[int]:
    with suppress(OSError):
        return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return []


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _lower(what: int, to: int) -> None:
    with suppress(OSError, ValueError):
        hard = resource.getrlimit(what)[1]
        limit = to if hard == resource.RLIM_INFINITY else min(to, hard)
        resource.setrlimit(what, (limit, limit))


def _libc() -> Any:
    """Return the C library, or None if the interpreter has no ctypes."""
    try:
        import ctypes

        return ctypes.CDLL(None)
    except (ImportError, OSError, MemoryError):
        return None
