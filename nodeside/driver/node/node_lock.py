"""Node-wide locks: one actor at a time, across pods and shells.

    /run/nodeside-locks/<name>.lock   the authoritative lock; only mounted by nodeside's own pods
    /run/nodeside/<name>.lock         the lock of older versions; taken too, for compatibility

flock(2) needs no write permission. Any process that can open a file can lock it, even through a
read-only mount, and every consumer of a driver mounts `/run/nodeside`. So the authoritative lock is
in a directory that consumers do not mount.

Older versions of nodeside use only the second lock. If one of them holds it, this version waits. It
does not wait for a neighbour, that is, a process that is not nodeside: nodeside opens the file for
writing, which a read-only mount does not allow, and the kernel can tell the difference
(`_is_neighbours`). The neighbour's file is removed and created again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nodeside import log
from nodeside.errors import Locked, NodesideError
from nodeside.protocol.records import decode, encode, read_untrusted
from nodeside.system.clock import Clock
from nodeside.system.file_lock import take_lock
from nodeside.system.files import disk_errors
from nodeside.system.host import Host
from nodeside.values import frozen

_AGAIN = 0.02  # seconds between two attempts
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


@frozen
class Holder:
    """The holder of a lock, as written into the lock file. `pod` is the holder's host name."""

    pid: int
    command: str
    pod: str
    since: float

    def in_words(self) -> str:
        words = f"pid {self.pid} ({self.command}) in {self.pod}"
        # The file is untrusted: its number may be out of range.
        with suppress(OverflowError, ValueError, OSError):
            return f"{words}, since {time.strftime('%H:%M:%S', time.gmtime(self.since))} UTC"
        return words


def node_lock_path(host: Host, name: str) -> Path:
    return host.locks / f"{name}.lock"


def former_lock_path(host: Host, name: str) -> Path:
    """Return the path that older versions use for the lock of this name."""
    return host.run / f"{name}.lock"


@contextmanager
def node_lock(
    host: Host, name: str, what: str, *, timeout: float, clock: Clock | None = None
) -> Iterator[None]:
    """Hold the lock `name` while the block runs; `what` describes it in messages.

    Waits up to `timeout` seconds, then raises Locked, which names the holder. The kernel releases
    the lock when the holder exits for any reason.
    """
    clock = clock or Clock()
    ends = clock.now() + timeout
    path, former = node_lock_path(host, name), former_lock_path(host, name)
    with ExitStack() as stack:
        authoritative = make_directory(host.locks)
        if authoritative:
            fd = _open_lock(path)
            stack.callback(os.close, fd)
            if not take_lock(fd, within=timeout, clock=clock):
                raise _locked_error(path, what, timeout)
            _write_holder(stack, path, fd)
        while (fd := _take_former(former, evict=authoritative)) < 0:
            if clock.now() >= ends:
                raise _locked_error(former, what, timeout)
            clock.sleep(_AGAIN)
        stack.callback(os.close, fd)
        _write_holder(stack, former, fd)
        yield


def is_locked(host: Host, name: str) -> bool:
    """Return whether some process holds the lock `name` now."""
    try:
        with _open_file(node_lock_path(host, name), os.O_RDONLY) as fd:
            return not take_lock(fd, shared=True)
    except OSError:
        return False


def lock_holders(host: Host, name: str) -> tuple[int, ...]:
    """Return the processes that hold the lock `name`, by the host's numbers, as proc_locks(5) has.

    The lock file says who holds it, but with a number of the holder's own PID namespace.
    """
    try:
        found = node_lock_path(host, name).lstat()
        lines = (host.proc / "locks").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    device = found.st_dev
    file = f"{os.major(device):02x}:{os.minor(device):02x}:{found.st_ino}"
    rows = [line.split() for line in lines if " FLOCK " in line]
    return tuple(int(row[4]) for row in rows if len(row) > 5 and row[5] == file and row[4] > "0")


def make_directory(path: Path) -> bool:
    """Create the directory; return False if the root file system is read-only.

    A pod of an older controller does not mount this directory.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        if exc.errno == errno.EROFS:
            return False
        with disk_errors(path):
            raise
    return True


def _open_lock(path: Path) -> int:
    """Open the lock file. A foreign lease delays this up to /proc/sys/fs/lease-break-time."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)


def _take_former(path: Path, *, evict: bool) -> int:
    """Take the lock of older versions; return its descriptor, or -1 if another process holds it.

    Only the holder of the authoritative lock may `evict` a neighbour.
    """
    if evict and _is_neighbours(path):
        path.unlink(missing_ok=True)
        log.warning("removed a lock file held by a process that is not nodeside", path=path)
    fd = _open_lock(path)
    if take_lock(fd):
        return fd
    os.close(fd)
    return -1


def _is_neighbours(path: Path) -> bool:
    """Return whether this file is locked by a process that cannot write to it.

    The kernel grants a read lease only while no process has the file open for writing (fcntl(2)).
    The lease ends with the descriptor. Until then, a process that opens the file has to wait, and
    the signal that we get for it is ignored. No nodeside keeps a lease, so a conflicting lease is a
    neighbour's.
    """
    try:
        with _open_file(path, os.O_RDWR) as fd:
            if take_lock(fd):
                return False
        with _open_file(path, os.O_RDONLY) as fd:
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            return _has_no_writer(fd)
    except BlockingIOError:
        return True
    except OSError:
        return False


def _has_no_writer(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return False
    return True


@contextmanager
def _open_file(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_NONBLOCK | _FLAGS)
    try:
        yield fd
    finally:
        os.close(fd)


def _locked_error(path: Path, what: str, timeout: float) -> Locked:
    holder = _read_holder(path)
    return Locked(
        f"another process is working on {what} on this node: "
        f"{holder.in_words() if holder else 'holder unknown'}"
        + (f"; waited {timeout:g} s" if timeout else ""),
        hint=f"wait for it, or see who it is: fuser -v {path}",
    )


def _write_holder(stack: ExitStack, path: Path, fd: int) -> None:
    """Write this process into the locked file; in place, since a rename would lose the lock."""
    holder = Holder(os.getpid(), shlex.join(sys.argv), os.uname().nodename, time.time())
    with disk_errors(path):
        os.ftruncate(fd, 0)
        os.pwrite(fd, (json.dumps(encode(holder)) + "\n").encode(), 0)
    stack.callback(os.ftruncate, fd, 0)  # no holder is left after this


def _read_holder(path: Path) -> Holder | None:
    """Return the holder in a lock file; None if unknown. The unlocked read may be partial."""
    with suppress(NodesideError):
        record = read_untrusted(path)
        return decode(Holder, record, where=path.name) if record else None
    return None
