"""A copy, made by root, of a directory that a vendor wrote.

Directories, regular files and links (as links) are copied. The copy belongs to us and only we may
write to it. It has no setuid or setgid bits and no extended attributes, so no file in it gives
rights to whoever runs it. Devices, pipes and sockets are refused without being opened, and a tree
above the limit is refused before anything of it is written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

from nodeside.system.files import disk_errors
from nodeside.trial.errors import TargetError

LIMIT_MIB = 2048
_DEPTH = 100  # nested directories; a path to the deepest is still one that Linux accepts
_CHUNK = 1 << 20
_MODES = 0o755
_KINDS = {
    stat.S_IFCHR: "a device node",
    stat.S_IFBLK: "a device node",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def copy_tree(source: Path, target: Path, *, leave_out: Collection[str] = ()) -> None:
    """Copy a tree to `target`, which must not exist, without the names in `leave_out`.

    `source` itself may be a link: the caller has decided on it. Raises TargetError for what is not
    copied, SystemRefused and NoSpace.
    """
    with disk_errors(source):
        source = source.resolve()
        used = sum(status.st_size for _, status, _ in _walk_entries(source, leave_out))
        _require_within_limit(source, used)
        _copy_entries(source, target, leave_out)


def require_inside(path: Path) -> Path:
    """Return the real path of a file. Raises TargetError if it is outside of its directory."""
    real = Path(os.path.realpath(path))  # of a circle of links too
    if not real.is_relative_to(os.path.realpath(path.parent)):
        raise TargetError(
            f"{path} is a link to {real}, outside of its directory",
            hint=f"copy the file: cp {real} {path.parent}",
        )
    return real


def replace_file(path: Path, data: bytes) -> None:
    """Write a new file in a copied tree, in place of whatever the vendor has there."""
    with disk_errors(path):
        path.unlink(missing_ok=True)
        with open(path, "xb") as file:
            file.write(data)


def _copy_entries(source: Path, target: Path, leave_out: Collection[str]) -> None:
    modes = {target: source.stat().st_mode & _MODES}
    left = LIMIT_MIB << 20
    target.mkdir(mode=0o700)
    for relative, status, directory in _walk_entries(source, leave_out):
        name, to = relative.name, target / relative
        if stat.S_ISDIR(status.st_mode):
            to.mkdir(mode=0o700)
            modes[to] = status.st_mode & _MODES
        elif stat.S_ISLNK(status.st_mode):
            to.symlink_to(os.readlink(name, dir_fd=directory))
        else:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            size = _copy_file(os.open(name, flags, dir_fd=directory), source / relative, to, left)
            if size > left:
                raise _limit_error(f"{source} has grown, and now holds more than {LIMIT_MIB} MiB")
            left -= size
    for path, mode in reversed(modes.items()):
        path.chmod(mode)


def _copy_file(fd: int, source: Path, target: Path, left: int) -> int:
    """Copy an open file and return its size, or one above `left` if it is too large to copy.

    The file may have changed since it was looked at.
    """
    with os.fdopen(fd, "rb") as reading, open(target, "xb") as writing:
        status = os.fstat(fd)
        _require_copyable(source, status)
        size = 0
        while chunk := reading.read(_CHUNK):
            size += len(chunk)
            if size > left:
                return size
            writing.write(chunk)
        writing.flush()
        os.fchmod(writing.fileno(), status.st_mode & _MODES)
        os.utime(writing.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
    return size


def _walk_entries(
    tree: Path, leave_out: Collection[str]
) -> Iterator[tuple[Path, os.stat_result, int]]:
    """Yield the relative path of each entry, its status, and a descriptor of its directory.

    A directory comes before its content. No link is followed, even one made during the walk.
    """
    for here, names, files, directory in os.fwalk(tree, onerror=_raise_error):
        relative = Path(here).relative_to(tree)
        if len(relative.parts) > _DEPTH:
            raise TargetError(f"{here}: directories nested more than {_DEPTH} deep")
        names[:] = [name for name in names if name not in leave_out]
        for name in (*names, *files):
            if name not in leave_out:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                _require_copyable(Path(here) / name, status)
                yield relative / name, status, directory


def _require_copyable(path: Path, status: os.stat_result) -> None:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise TargetError(
            f"{path} is {kind}; a driver consists of files, directories and links",
            hint="remove it, or try a copy of the directory without it",
        )


def _require_within_limit(source: Path, size: int) -> None:
    if size > LIMIT_MIB << 20:
        raise _limit_error(f"{source} holds {-(-size >> 20)} MiB, the limit is {LIMIT_MIB} MiB")


def _limit_error(problem: str) -> TargetError:
    return TargetError(
        problem, hint="put driver.yaml beside the source of the driver and nothing else"
    )


def _raise_error(exc: OSError) -> NoReturn:
    raise exc
