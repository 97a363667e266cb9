"""Directory trees of a build: copied from the driver, moved to dkms's path, and removed."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from nodeside.errors import NoSpace
from nodeside.protocol.build_records import FailureKind
from nodeside.system import process
from nodeside.system.files import TEMPORARY_PREFIX, disk_errors
from nodeside.toolkit_sidecar.failure import BuildFailed

_REMOVE_TIMEOUT = 600.0  # seconds for rm; the largest build has about 100,000 files


def copy_tree(source: Path, target: Path) -> None:
    """Make a writable copy. Links and times are kept, so that make sees the vendor's order."""
    with disk_errors(target):
        try:
            os.scandir(source).close()
            shutil.copytree(source, target, symlinks=True)
        except PermissionError as exc:
            raise BuildFailed(
                FailureKind.BAD_SOURCE,
                f"cannot read the source: {exc.strerror}: {exc.filename}",
                hint=f"the sidecar runs as uid {os.geteuid()}: make the source readable for all",
            ) from exc
        except shutil.Error as exc:
            first = exc.args[0][0][2]
            if "No space left" in str(first):
                raise NoSpace(f"no space left copying {source} to {target}") from exc
            raise BuildFailed(FailureKind.BAD_SOURCE, f"cannot copy the source: {first}") from exc
        for directory, _, files in os.walk(target):
            _make_writable(directory)
            for name in files:
                _make_writable(os.path.join(directory, name))


def _make_writable(path: str) -> None:
    status = os.lstat(path)
    if not status.st_mode & stat.S_IWUSR and not stat.S_ISLNK(status.st_mode):
        Path(path).chmod(stat.S_IMODE(status.st_mode) | stat.S_IWUSR)


def tree_size(root: Path) -> int:
    """Return the total size in bytes of the files below `root`."""
    total = 0
    for directory, _, files in os.walk(root):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_size
    return total


def move_to(directory: Path, target: Path) -> None:
    """Move a tree to dkms's path for it, and leave a link in its place.

    Vendors' MAKE lines name `$dkms_tree/<name>/<version>/build`, and `find` does not follow a link
    passed as an argument, so that path must be the real directory.
    """
    with disk_errors(target):
        target.parent.mkdir(parents=True)
        real = Path(os.path.realpath(directory))
        real.rename(target)
        real.symlink_to(os.path.relpath(target, real.parent))


def remove_tree(path: Path) -> None:
    """Remove whatever is at `path`. A build may have made it deep, read-only, or a link."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISDIR(path.lstat().st_mode):  # there may be a million, too many to start rm for
        with disk_errors(path):
            path.unlink()
        return
    gone = path
    if not path.name.startswith(TEMPORARY_PREFIX):
        with suppress(OSError):  # its name may be too long for more, or the new one be taken
            gone = path.rename(path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}"))
    remove = ("rm", "-rf", "--", str(gone))
    if process.run(remove, timeout=_REMOVE_TIMEOUT, check=False).exit_code != 0:
        process.run(("chmod", "-R", "u+rwX", str(gone)), timeout=_REMOVE_TIMEOUT, check=False)
        process.run(remove, timeout=_REMOVE_TIMEOUT)
