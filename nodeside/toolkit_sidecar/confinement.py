"""Runs vendor code: watched, in a session of its own, with no process left when its step ends.

Its input is closed and its environment is built from scratch. It runs as the same user as the
sidecar, so nothing that it leaves on disk is trusted; see `collect_modules`.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path

from nodeside.protocol.build_records import FailureKind
from nodeside.system import process
from nodeside.toolkit_sidecar import descendants
from nodeside.toolkit_sidecar.buildlog import BuildLog
from nodeside.toolkit_sidecar.failure import BuildFailed, Withdrawn
from nodeside.toolkit_sidecar.jobs import count_tasks
from nodeside.values import frozen

LEAST_FREE = 8 << 20  # bytes; below this a build is stopped, so that its result can be written
# A kubelet evicts pods from a disk with less free than this, by default, but never a driver pod,
# which is critical. For the same reason it does not enforce the size limits of its volumes.
_OF_OTHERS = 15  # percent of a disk that a build leaves to others
_OF_A_BUILD = 1 << 30  # bytes that any build may take, and ten times the size of its source
_INODES_OF_OTHERS = 5  # percent, as above
_INODES_OF_A_BUILD = 300_000  # the largest build has about 100,000 files
# Processes and threads of a build; `make` on 128 processors has about a thousand. Many nodes have
# 32,768 for all pods, and a kubelet evicts pods when few are left.
_TASKS = 16_384
_LOOK = 0.2  # seconds between checks of the deadline, the request, the disk and the processes
_REAP = 5.0  # seconds for a killed process to end; a large one takes one or two
_PIECE = 64 << 10  # bytes read from the build at once
_DRAIN = 16  # pieces still read after the build's end; a survivor may write endlessly


@frozen
class Step:
    """One command of a build, and how to repeat it by hand."""

    name: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_hand(self) -> str:
        """Return a shell command line for the toolkit container."""
        variables = [f"{name}={value}" for name, value in sorted(self.env.items())]
        words = ["env", *variables, *self.argv] if variables else [*self.argv]
        return f"cd {shlex.quote(str(self.cwd))} && {shlex.join(words)}"


class BuildWatch:
    """The events that end a build from outside: deadline, withdrawn request, full disk, crowd."""

    def __init__(
        self,
        *,
        seconds: float,
        request: Path,
        disk: Path,
        what: str = "the build",
        least_free: int = LEAST_FREE,
        least_inodes: int = 0,
    ) -> None:
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._request = request
        self._disk = disk
        self._what = what
        self._least_free = least_free
        self._least_inodes = least_inodes
        self._next = 0.0

    def limited_to(self, seconds: float, what: str) -> BuildWatch:
        """Return a watch over part of the build, limited to `seconds` and to the time left."""
        left = self._deadline - time.monotonic()
        if left <= seconds:
            return self
        return BuildWatch(
            seconds=seconds,
            request=self._request,
            disk=self._disk,
            what=what,
            least_free=self._least_free,
            least_inodes=self._least_inodes,
        )

    def leave_to_others(self, source_bytes: int) -> None:
        """Set how much of the disk the build must leave free. Called before it begins."""
        status = os.statvfs(self._disk)
        total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
        spare = free - _OF_A_BUILD - 10 * source_bytes
        self._least_free = max(LEAST_FREE, min(total * _OF_OTHERS // 100, spare))
        spare = status.f_favail - _INODES_OF_A_BUILD
        self._least_inodes = max(0, min(status.f_files * _INODES_OF_OTHERS // 100, spare))

    def check(self) -> None:
        """Raise Withdrawn or BuildFailed if the build must not go on.

        Cheap: most calls only read the clock.
        """
        now = time.monotonic()
        if now >= self._deadline:
            raise BuildFailed(
                FailureKind.TIMEOUT,
                f"{self._what} did not end within {self.seconds:g} s",
                hint="raise build.timeoutSeconds in driver.yaml, or give the toolkit more CPUs",
            )
        if now < self._next:
            return
        self._next = now + _LOOK
        if not self._request.exists():
            raise Withdrawn("the request was withdrawn")
        status = os.statvfs(self._disk)
        free = status.f_bavail * status.f_frsize
        if free < self._least_free:
            raise disk_full_error(self._disk, free, self._least_free)
        if status.f_favail < self._least_inodes:
            raise BuildFailed(
                FailureKind.DISK_FULL,
                f"too many files in {self._disk}: {status.f_favail} inodes free, and "
                f"{self._least_inodes} of them are for others",
                hint=f"remove some files: df -i {self._disk}",
            )
        tasks = count_tasks(Path("/")) if descendants.owns_container() else 0
        if tasks > _TASKS:
            raise BuildFailed(
                FailureKind.COMPILE,
                f"{self._what} has {tasks} processes and threads, at most {_TASKS} are allowed",
                hint="the node needs the rest: look for what the build starts without end",
            )


def free_bytes(path: Path) -> int:
    """Return the bytes that an ordinary user may still write to the file system of `path`."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def disk_full_error(path: Path, free: int, least: int = LEAST_FREE) -> BuildFailed:
    """Return the failure that names the disk, the space left on it, and what others are left."""
    others = f", and {least >> 20} MiB of it are for others" if least > LEAST_FREE else ""
    return BuildFailed(
        FailureKind.DISK_FULL,
        f"no space left in {path}: {free >> 20} MiB free{others}",
        hint=f"free some space or raise the volume's size limit: df -h {path}",
    )


def run_confined(step: Step, *, mark: str, log: BuildLog, watch: BuildWatch) -> int:
    """Run a step to its end and return its exit code.

    Every process that the step started is dead when this returns. Raises ToolMissing, what
    `BuildWatch.check` raises, and BuildFailed if a process does not die.
    """
    watch.check()
    descendants.adopt_orphans()
    spared = descendants.find_descendants()
    reading, writing = os.pipe()
    try:
        try:
            child = process.start(
                step.argv,
                # A shell sets PWD, and vendors' Makefiles rely on it: `M=$(PWD)`.
                env={"PWD": str(step.cwd), **step.env, descendants.MARK: mark},
                cwd=step.cwd,
                stdout=writing,
                stderr=writing,
                wrapper=descendants.make_enclosure(),
            )
        finally:
            os.close(writing)
        try:
            _follow_output(child.pid, reading, log, watch)
        finally:
            code = _end_step(child, mark, spared)
            left = descendants.kill_descendants(mark, spared)
    finally:
        os.close(reading)
    _require_none_left(left, step.name)
    return code


@contextmanager
def leave_no_process(mark: str, what: str) -> Iterator[None]:
    """Kill what the commands of the block leave running: driver.yaml may choose them, too.

    If a process does not die, this raises BuildFailed. `what` names the block in its message.
    """
    descendants.adopt_orphans()
    spared = descendants.find_descendants()
    try:
        yield
    finally:
        left = descendants.kill_descendants(mark, spared)
    _require_none_left(left, what)


def _end_step(child: process.Child, mark: str, spared: frozenset[int]) -> int:
    """Kill and reap the first process of a step. Return its exit code.

    A process that traces it (ptrace(2)) keeps it from being reaped for as long as it lives.
    """
    process.kill_group(child.pid)
    with suppress(process.StillRunning):
        return child.wait(_REAP)
    descendants.kill_descendants(mark, spared | {child.pid})
    with suppress(process.StillRunning):
        return child.wait(_REAP)
    return -signal.SIGKILL


def _require_none_left(left: frozenset[int], what: str) -> None:
    if left:
        raise BuildFailed(
            FailureKind.TIMEOUT,
            f"{what} ended, but {len(left)} of its processes do not die: "
            f"pid {min(left)}{', ...' if len(left) > 1 else ''}",
            hint="restart the pod; a driver whose build does this again and again is at fault",
        )


def _follow_output(pid: int, reading: int, log: BuildLog, watch: BuildWatch) -> None:
    """Feed the log until the process ends. A child that keeps the pipe open is not waited for."""
    os.set_blocking(reading, False)
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    with _exit_notice(pid) as ended:
        if ended >= 0:
            poll.register(ended, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll(_LOOK * 1000 if ended >= 0 else 20)]
            if reading in ready and not _pump_output(reading, log):
                poll.unregister(reading)
            if ended in ready or (ended < 0 and _has_ended(pid)):
                break
            watch.check()
    for _ in range(_DRAIN):
        if not _pump_output(reading, log):
            break


def _pump_output(reading: int, log: BuildLog) -> bool:
    """Move one piece from the pipe to the log. Return False at its end or when it is empty."""
    try:
        data = os.read(reading, _PIECE)
    except BlockingIOError:
        return False
    if data:
        log.add_output(data)
    return bool(data)


@contextmanager
def _exit_notice(pid: int) -> Iterator[int]:
    """Yield a descriptor that is readable once the process has ended; -1 before Linux 5.3."""
    fd = -1
    with suppress(OSError):
        fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


def _has_ended(pid: int) -> bool:
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, flags) is not None
