"""Durable files: atomic writes, and safe opening of files from untrusted writers.

`publish_bytes` creates every file that must be durable. With `open_untrusted`, one side of the
shared directory opens files that the other side, or vendor build code, wrote there. OSErrors of
writes become errors that name the file and say what to do.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from nodeside.errors import NodesideError, NoSpace, SystemRefused

TEMPORARY_PREFIX = ".tmp-"


class UntrustedFile(NodesideError):
    """A file of another party is unacceptable: a link, a device, too large, not JSON."""

    reason = "UntrustedFile"


class LeasedFile(UntrustedFile):
    """A process holds a lease on the file (fcntl(2)), as any reader with the owner's uid can."""


def publish_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: write a temporary file, fsync, rename, fsync the directory.

    The temporary file is always created anew and is never a link, even in a directory that others
    can write to. A restarted container has the same process ids, so a leftover of a crash may have
    the same name. It has another suffix: container runtimes read each `*.json` of a CDI directory.
    """
    name = f"{TEMPORARY_PREFIX}{path.name}-{os.getpid()}-{threading.get_native_id()}"
    temporary = path.parent / name
    with disk_errors(path):
        with suppress(FileNotFoundError):
            temporary.unlink()
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                os.fchmod(fd, 0o644)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_directory(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def sync_directory(path: Path) -> None:
    """Fsync the directory `path`, so that a rename in it survives a power failure."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn OSError into NoSpace or SystemRefused with the path in the message."""
    try:
        yield
    except shutil.Error as exc:  # from copytree: (from, to, why) per file, without errno
        full = os.strerror(errno.ENOSPC)
        failed = [(to, str(why)) for _, to, why in exc.args[0]]
        if any(full in why for _, why in failed):
            raise NoSpace(
                f"no space left writing {path}", hint=f"free some space: df -h {path.parent}"
            ) from exc
        raise SystemRefused(f"cannot copy to {failed[0][0]}: {failed[0][1]}") from exc
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(
                f"no space left writing {path}", hint=f"free some space: df -h {path.parent}"
            ) from exc
        hint = ""
        if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = f"run as root, or check the permissions: ls -ld {path.parent}"
        raise SystemRefused(f"{exc.strerror}: {exc.filename or path}", hint=hint) from exc


@contextmanager
def open_untrusted(path: Path, *, limit: int) -> Iterator[IO[bytes]]:
    """Open a regular file of at most `limit` bytes, without following links and without blocking.

    Only the last component is protected from links. The directories above it must be ours, or the
    caller must open them with `dir_fd`. Raises FileNotFoundError and UntrustedFile.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except BlockingIOError as exc:
        raise LeasedFile(f"{path}: a process holds a lease on it") from exc
    except OSError as exc:
        what = "a symbolic link" if exc.errno == errno.ELOOP else exc.strerror
        raise UntrustedFile(f"{path}: refused to open: {what}") from exc
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedFile(f"{path}: expected a regular file")
        if status.st_size > limit:
            raise UntrustedFile(f"{path}: {status.st_size} bytes, at most {limit} are read")
        with os.fdopen(fd, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(fd)


Identity = tuple[int, int, int]


def file_identity(path: Path) -> Identity | None:
    """Return the device, inode and ctime of a file; None if there is none.

    ext4 gives the same inode again: the ctime tells a new file from the old one.
    """
    try:
        return identity_from_stat(path.lstat())
    except OSError:
        return None


def identity_from_stat(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino, found.st_ctime_ns
