"""Kills every process that a build started, however it forked.

The sidecar makes itself a child subreaper (prctl(2)): a process that detaches from its parent, its
group and its session becomes the sidecar's own child instead of init's, so a walk down the process
tree finds it. Where prctl or /proc is missing, the mark in the environment and the process group
remain.

Processes that fork and exit without pause move faster than such a walk. If the sidecar is process 1
of its container, they are killed at once with all other processes there; see `claim_container`.

ctypes is imported on the first build only, so an idle sidecar does not pay for it.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from nodeside import log
from nodeside.toolkit_sidecar.memory import be_killed_first
from nodeside.toolkit_sidecar.no_network import close_network

MARK = "NODESIDE_BUILD"  # environment variable of every build process: its out directory

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PATIENCE = 5.0  # seconds for processes to die; only one stuck in the kernel takes longer
_SHOWN = 20  # pids in a log line
_LARGEST_FILE = 8 << 30  # bytes: no build makes a larger one


class _Container:
    """What is known about the container of this process."""

    ours = False  # the sidecar is its process 1, so all other processes in it are the build's


class Found(NamedTuple):
    """Processes to kill. If `sure`, there are no others."""

    pids: frozenset[int]
    sure: bool = True


class KillResult(NamedTuple):
    """How many processes were killed, and those that did not die."""

    killed: int
    left: frozenset[int]


def claim_container(keeper: int) -> None:
    """Allow this worker to kill all processes, if its supervisor says that it is process 1.

    Processes that someone runs there with `kubectl exec` then die too, but only if a build's do not
    die otherwise. Elsewhere, as on a laptop, the other processes are not ours to kill.
    """
    _Container.ours = keeper == 1


def owns_container() -> bool:
    """Return whether all other processes of the container are the build's."""
    return _Container.ours


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent dies, however the parent dies."""
    libc = _load_libc()
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the prctl, and a stranger adopted us
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process adopt its orphaned descendants."""
    libc = _load_libc()
    if libc is None or libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        log.warning("cannot become a child subreaper: a detached build process may survive")


def make_enclosure() -> Callable[[], None]:
    """Return the function that a build's first process runs between fork and exec.

    The process then dies with the sidecar, and before the sidecar if memory runs out. It cannot
    gain privileges through a set-uid program, opens no socket, cannot write a core file or an
    endless file, and receives the signals that the sidecar keeps blocked. Unlike the sidecar it is
    dumpable, as it could not change its own files in /proc otherwise.
    """
    libc = _load_libc()
    close = close_network()
    parent = os.getpid()

    def enter() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
        if libc is not None:
            libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        be_killed_first()
        _lower_limit(resource.RLIMIT_CORE, 0)
        _lower_limit(resource.RLIMIT_FSIZE, _LARGEST_FILE)
        if libc is not None:
            libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        close()
        if os.getppid() != parent:  # it died between the fork and the prctl
            os._exit(1)

    return enter


def find_descendants(of: int = 0) -> frozenset[int]:
    """Return the pids of all processes below this one, or below process `of`."""
    return _find_below(of or os.getpid()).pids


def _find_below(of: int) -> Found:
    """Return the processes below `of`; sure if none ended, and maybe forked, during the search."""
    children: dict[int, list[int]] = {}
    sure = True
    for pid in _list_processes():
        try:
            children.setdefault(parent_of(_read_proc(pid, "stat")), []).append(pid)
        except (OSError, ValueError, IndexError):
            sure = False
    pids: set[int] = set()
    waiting = [of]
    while waiting:
        below = children.get(waiting.pop(), [])
        pids.update(below)
        waiting += below
    return Found(frozenset(pids), sure)


def kill_descendants(mark: str, spared: frozenset[int]) -> frozenset[int]:
    """Kill and reap all descendants except those `spared`, and every process that carries `mark`.

    Processes that die pass their children to us, so this repeats until none is left. Return the
    pids of those that do not die.
    """

    def find() -> Found:
        pids = (find_descendants() - spared) or _find_marked(mark)
        return Found(pids, sure=bool(spared) or _has_no_child())

    return _kill_all(find).left


def kill_marked(prefix: str) -> int:
    """Kill what an earlier sidecar's builds left behind. Return the number of processes."""
    left = _find_marked(prefix)
    _kill_pids(left)
    return len(left)


def kill_others(keeper: int) -> KillResult:
    """Kill all processes below our parent except us.

    Processes that an earlier worker left there may have removed their mark. A shell that `kubectl
    exec` starts has no parent in the container, so it survives.
    """

    def find() -> Found:
        found = _find_below(keeper)
        return Found(found.pids - {os.getpid()}, found.sure)

    return _kill_all(find)


def _kill_all(find: Callable[[], Found]) -> KillResult:
    """Kill and reap what `find` returns until it surely returns nothing.

    If that takes too long, all other processes of the container are killed, if it is ours.
    """
    deadline = time.monotonic() + _PATIENCE
    killed: set[int] = set()
    last = not _Container.ours
    while True:
        late = time.monotonic() > deadline  # before the search, which may take long itself
        left, sure = find()
        if not left and (sure or (late and last)):
            return KillResult(len(killed), left)
        _kill_pids(left)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        killed |= left
        if late and last:
            shown = " ".join(map(str, sorted(left)[:_SHOWN]))
            log.warning("processes of the build do not die", count=len(left), pids=shown)
            return KillResult(len(killed), left)
        if late:
            _kill_container()
            last, deadline = True, time.monotonic() + _PATIENCE
        time.sleep(0.001)


def _kill_container() -> None:
    """Kill all processes of the container except us and process 1, and do it atomically.

    No process can fork while the kernel does this, so none escapes; kill(2).
    """
    if os.getppid() == 1:  # still below the supervisor
        with suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)


def _has_no_child() -> bool:
    """Return whether we have no child, not even a dead one.

    Since orphans become our children, we then have no descendants, however fast they fork.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def parent_of(stat: bytes) -> int:
    """Return the parent's pid from `/proc/<pid>/stat`, whose command may contain any character."""
    return int(stat.rpartition(b")")[2].split()[1])


def _find_marked(prefix: str) -> frozenset[int]:
    """Return the other processes whose environment has a mark that starts with `prefix`."""
    variable = f"{MARK}={prefix}".encode()
    pids: set[int] = set()
    for pid in _list_processes():
        with suppress(OSError):
            variables = _read_proc(pid, "environ").split(b"\0")
            if pid != os.getpid() and any(item.startswith(variable) for item in variables):
                pids.add(pid)
    return frozenset(pids)


def _read_proc(pid: int, name: str) -> bytes:
    """Return a file of a process. All processes are looked at after each step of a build."""
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read()


def _list_processes() -> list[int]:
    with suppress(OSError):
        return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return []


def _kill_pids(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _lower_limit(what: int, to: int) -> None:
    with suppress(OSError, ValueError):
        hard = resource.getrlimit(what)[1]
        limit = to if hard == resource.RLIM_INFINITY else min(to, hard)
        resource.setrlimit(what, (limit, limit))


def _load_libc() -> Any:
    """Return the C library, or None if the interpreter has no ctypes."""
    try:
        import ctypes

        return ctypes.CDLL(None)
    except (ImportError, OSError, MemoryError):
        return None
