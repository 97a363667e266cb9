"""The process that waits for requests. It is small, because it waits for weeks on every node.

It holds the sidecar's lock, watches for requests, and forks a worker to handle them. The worker
imports everything, builds, publishes the results and exits, which frees its memory. If a worker is
killed (out of memory, by hand, by the build), stopped or crashes, another one takes over, so a
request is answered whatever happens to the process that works on it. Deaths are counted here, where
no build can write.

This module therefore imports little. It repeats the names of three directories and of the lock,
because importing `nodeside.protocol.shared_directory` costs 4 MiB; a test compares the names.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from nodeside.errors import ExitCode, Locked, SystemRefused
from nodeside.system.directory_watch import DirectoryWatch

# Modules that the worker needs too, as many as fit into the memory goal (13 MiB PSS). A module
# imported before the fork need not be imported after it.
PRELOADED = ("json",)

_WAIT = 60.0  # seconds; every change ends the wait early
_AGAIN = 0.5  # seconds before a dead worker is replaced
_GRACE = 0.7  # seconds that a worker has to kill its build on SIGTERM
# struct flock of fcntl(2): the lock that `SharedDir.sidecar_lives` tests.
_WRITE_LOCK = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36  # prctl(2)
# Exit codes of a worker: a bug of ours, a signal, requests left for another worker, processes of a
# build that do not die.
_CRASHED, _STOPPED, MORE, SURVIVED = 120, 121, 122, 123


class Life(NamedTuple):
    """What a worker learns about the workers before it."""

    first: bool  # it is this sidecar's first worker
    died: str  # how the previous worker died, "" if it did not
    deaths: int  # number of consecutive deaths while the same requests were present
    keeper: int  # the pid of the supervisor
    closed: bool  # no build can open this worker or the supervisor; otherwise none may begin


Worker = Callable[[Life], int]


class Stopped(BaseException):
    """SIGTERM or SIGINT. A BaseException, so that no `except Exception` turns it into a result.

    Python drops an exception that a signal handler raises at the wrong moment (in the callback of a
    weak reference, such as every import has). The signal's name is therefore also in `by`, which
    the waiting loop checks.
    """

    by = ""


def stop_on_signals() -> None:
    """Make SIGTERM and SIGINT raise Stopped, once: a second one must not interrupt the shutdown."""

    def stop(number: int, _: object) -> None:
        if not Stopped.by:
            Stopped.by = signal.Signals(number).name
            raise Stopped(Stopped.by)

    def report_lost(what: sys.UnraisableHookArgs) -> None:
        if what.exc_type is not Stopped:  # Stopped is recorded in `by`, and is no fault
            sys.__unraisablehook__(what)

    sys.unraisablehook = report_lost
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, stop)


class Supervisor:
    """The supervisor of one shared directory. `work` handles the requests in a forked process.

    It returns the exit code of `--once`, MORE or SURVIVED.
    """

    def __init__(self, root: Path, work: Worker) -> None:
        self.requests, self.results, self.out = root / "requests", root / "results", root / "out"
        self.lock = self.results / "sidecar.lock"
        self._root = root
        self._work = work
        self._worker = 0
        self._stopped = ""  # how the worker was stopped, if it was
        self._closed = False
        self._deaths = 0
        self._deadly: frozenset[str] = frozenset()  # the requests present at a death

    def run(self, *, once: bool = False) -> ExitCode:
        """Have requests answered until stopped; with `once`, only those already present.

        Raises Locked if another sidecar works on this directory, Stopped on a signal, and
        SystemRefused if processes of a build do not die. They do when process 1 of a container
        ends.
        """
        self._require_directory()
        for name in PRELOADED:
            __import__(name)
        with ExitStack() as stack, DirectoryWatch([self.requests]) as notice:
            lock = self._hold_lock(stack)
            settled: tuple[int, tuple[tuple[str, int], ...]] | None = None
            code = ExitCode.OK
            died = ""
            while not Stopped.by:
                _reap_orphans()
                # A request may come and go while a worker runs: the directory's time tells.
                changed = self.requests.stat().st_mtime_ns
                requests = self._list_requests()
                if (changed, requests) == settled and not died:
                    if once:
                        return code
                    notice.wait(_WAIT)
                    continue
                if requests:
                    _prepare_for_vendor_code()
                    self._closed = True
                self._reset_deaths(requests)
                life = Life(settled is None, died, self._deaths, os.getpid(), self._closed)
                status, died = self._run_worker(lock, life)
                if not self._lock_is_current(lock):  # a build runs as our user and can replace it
                    lock = self._hold_lock(stack)
                if status == SURVIVED:
                    raise SystemRefused(
                        "processes of a build do not die, so no other build may begin",
                        hint="their pids are in the log; end them before the next start",
                    )
                if died:
                    self._deaths, self._deadly = self._deaths + 1, _request_names(requests)
                    time.sleep(_AGAIN)
                    continue
                self._deaths = 0
                if status != MORE:
                    settled, code = (changed, requests), ExitCode(status) or code
            raise Stopped(Stopped.by)

    def _list_requests(self) -> tuple[tuple[str, int], ...]:
        """Return the requests that are present. The worker decides which of them are open."""
        requests: list[tuple[str, int]] = []
        for entry in os.scandir(self.requests):
            with suppress(FileNotFoundError):
                requests.append((entry.name, entry.stat(follow_symlinks=False).st_mtime_ns))
        return tuple(sorted(requests))

    def _reset_deaths(self, requests: Iterable[tuple[str, int]]) -> None:
        """Reset the death count if a request that may have caused the deaths is gone."""
        if not self._deadly <= _request_names(requests):
            self._deaths = 0

    def _run_worker(self, lock: int, life: Life) -> tuple[int, str]:
        """Fork a worker and wait for its end. Return its exit code, and how it died, if it did."""
        self._worker = os.fork()
        if self._worker == 0:
            os.close(lock)
            os._exit(self._run_as_worker(life))
        try:
            status = self._await_worker()
        except Stopped:
            self._stop_worker()
            raise
        self._worker = 0
        if os.WIFSIGNALED(status):
            how = f"killed by {_signal_name(os.WTERMSIG(status))}"
            return ExitCode.BUG, self._stopped or how
        code = os.WEXITSTATUS(status)
        if code in (_CRASHED, _STOPPED):
            how = "a bug in nodeside, see the traceback above" if code == _CRASHED else "stopped"
            return ExitCode.BUG, how
        return code, ""

    def _run_as_worker(self, life: Life) -> int:
        """Run the work in the fork. Nothing may be raised out of it."""
        try:
            return self._work(life)
        except Stopped:
            return _STOPPED
        except BaseException:
            import traceback

            traceback.print_exc()
            return _CRASHED

    def _await_worker(self) -> int:
        """Return the wait status of the worker. Orphans are reaped too.

        A stopped worker (SIGSTOP) would never end, nor watch its build, so it is killed.
        """
        self._stopped = ""
        while True:
            pid, status = os.waitpid(-1, os.WUNTRACED)
            if pid != self._worker:
                continue
            if not os.WIFSTOPPED(status):
                return status
            name = _signal_name(os.WSTOPSIG(status))
            self._stopped = f"stopped by {name}, and therefore killed"
            os.kill(pid, signal.SIGKILL)

    def _stop_worker(self) -> None:
        """End the worker, which ends its build. The rest dies with it (PR_SET_PDEATHSIG)."""
        with suppress(ProcessLookupError, ChildProcessError):  # it has just ended by itself
            os.kill(self._worker, signal.SIGTERM)
            deadline = time.monotonic() + _GRACE
            while time.monotonic() < deadline:
                if os.waitpid(self._worker, os.WNOHANG)[0]:
                    return
                time.sleep(0.005)
            os.kill(self._worker, signal.SIGKILL)

    def _require_directory(self) -> None:
        for path in (self.requests, self.results, self.out):
            if not path.is_dir():
                raise SystemRefused(
                    f"{self._root} is not a shared directory: {path.name}/ is missing",
                    hint="the driver creates it; in a pod, the init container does",
                )

    def _hold_lock(self, stack: ExitStack) -> int:
        """Take the lock and return its descriptor, which the stack closes. Raises Locked."""
        fd = self._open_lock()
        stack.callback(os.close, fd)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WRITE_LOCK)
        except (BlockingIOError, PermissionError):
            raise Locked(
                f"another toolkit sidecar works on {self._root}",
                hint=f"its pid is in {self.results}/sidecar.json",
            ) from None
        return fd

    def _open_lock(self) -> int:
        """Open the lock file. Anything else in its place is renamed, for the worker to remove.

        A build may have put it there.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self.lock, flags, 0o644)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
            os.close(fd)
        except OSError as exc:
            if exc.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES):
                raise self._lock_error(exc) from exc
        try:
            self.lock.rename(self.results / f".tmp-{os.getpid()}-{time.monotonic_ns()}")
            return os.open(self.lock, flags | os.O_EXCL, 0o644)
        except OSError as exc:
            raise self._lock_error(exc) from exc

    def _lock_error(self, exc: OSError) -> SystemRefused:
        return SystemRefused(
            f"cannot open {self.lock}: {exc.strerror}",
            hint=f"the sidecar runs as uid {os.geteuid()}; did an earlier one have another uid?",
        )

    def _lock_is_current(self, lock: int) -> bool:
        """Return whether the lock file that we hold is still the one that the driver tests."""
        try:
            return os.path.samestat(self.lock.lstat(), os.fstat(lock))
        except OSError:
            return False


def _prepare_for_vendor_code() -> None:
    """Close our files and memory to builds, and adopt the processes that a worker leaves behind.

    A build runs as our user. If we were dumpable it could open our log in /proc and write unmarked
    lines, or trace us; the worker inherits this. The next worker kills what we adopt. Process 1 of
    a container adopts it anyway.

    ctypes is imported for this, just before the first build, so that a sidecar without requests
    does not pay for it.
    """
    with suppress(ImportError, OSError, MemoryError):
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        if os.getpid() != 1:
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap_orphans() -> None:
    """Reap what has ended. Call this only while there is no worker."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _request_names(requests: Iterable[tuple[str, int]]) -> frozenset[str]:
    return frozenset(name for name, _ in requests)


def _signal_name(number: int) -> str:
    """Return the name of a signal; realtime signals have only a number."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
