"""Writes a directory of generated files as a whole, and a single file.

The files are written into a temporary directory next to the target, which is then renamed to it.
An existing directory is replaced only if we made it: its main file begins with our mark, and it has
no file that we do not write. A crash leaves the temporary directory, which may contain the old
files; a later call for this target removes it. Root writes with the rights of the owner of the
directory above.
"""

from __future__ import annotations

import glob
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from nodeside import __version__
from nodeside.errors import ExitCode, NodesideError, SystemRefused
from nodeside.system.files import disk_errors, publish_bytes
from nodeside.system.owned_directory import as_owner_of

_MARK = "# Made by nodeside-cluster"
_MARKED = f"{_MARK} {__version__}: to change it, make it again.\n"
_ABANDONED = 600.0  # seconds after which the directory of another call is a leftover
_STREAMS = ("/dev", "/dev/fd", "/dev/pts", "/proc/self/fd", "/proc/thread-self/fd")
_HINT = "name a directory that does not exist yet: --output DIRECTORY"


class NotOurs(NodesideError):
    """The target exists and was not made by us."""

    exit_code = ExitCode.USAGE
    reason = "NotOurs"


def write_directory(
    place: Path, files: Mapping[str, str], *, main: str, names: Collection[str] = ()
) -> None:
    """Write `files` to `place`.

    `main` is the file with our mark; `names` are files that an earlier call may have made. Raises
    NotOurs, SystemRefused, and UsageError where root could be made to write elsewhere.
    """
    place = Path(os.path.abspath(place))  # noqa: PTH100 - `..` of a link is not meant
    with as_owner_of(place.parent) as here:
        _check_replaceable(here / place.name, place, main, {*files, *names})
        _write_all(here / place.name, place, {**files, main: _MARKED + files[main]})


def write_file(path: Path, text: str) -> None:
    """Write a file by rename. A link is replaced, and nothing is written to where it leads.

    A pipe or a device stays what it is: it is written to, and so is what a name in _STREAMS leads
    to.

    Raises NotOurs, SystemRefused, NoSpace, UsageError.
    """
    if str(path.parent) in _STREAMS:
        with disk_errors(path):
            _write_stream(os.open(path, os.O_WRONLY | os.O_TRUNC), text)
        return
    with as_owner_of(path.parent) as here, disk_errors(path):
        file = here / path.name
        mode = file.lstat().st_mode if os.path.lexists(file) else stat.S_IFREG
        if stat.S_ISDIR(mode):
            raise NotOurs(f"{path} exists and is not a file", hint="name a file, or - for stdout")
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            publish_bytes(file, text.encode())
        else:
            _write_stream(os.open(file, os.O_WRONLY | os.O_NOFOLLOW), text)


def _write_stream(descriptor: int, text: str) -> None:
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)


def _write_all(here: Path, place: Path, files: Mapping[str, str]) -> None:
    """Write the directory `here`, which the user knows as `place`."""
    prefix = f".tmp-{place.name}-"
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=here.parent) as temporary:
            new, old = Path(temporary, "new"), Path(temporary, "old")
            for name, text in files.items():
                _write_synced(new / name, text)
            if here.exists():
                here.rename(old)
            try:
                new.rename(here)
            except OSError:
                if old.exists():
                    old.rename(here)
                raise
    except OSError as exc:
        raise SystemRefused(f"{place} cannot be written: {exc.strerror or exc}") from exc
    for path in here.parent.glob(glob.escape(prefix) + "?" * 8):  # as tempfile names them
        if _is_leftover(path):
            shutil.rmtree(path, ignore_errors=True)


def _write_synced(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _is_leftover(path: Path) -> bool:
    try:
        made = {each.name for each in path.iterdir()}
        old = time.time() - path.lstat().st_mtime > _ABANDONED
        return old and bool(made) and made <= {"new", "old"} and _is_plain(path)
    except OSError:
        return False  # a file, or another user's


def _check_replaceable(here: Path, place: Path, main: str, names: Collection[str]) -> None:
    if not os.path.lexists(here):
        return
    if not _is_plain(here):
        raise NotOurs(f"{place} exists and is not a directory", hint=_HINT)
    files = {str(each.relative_to(here)) for each in here.rglob("*") if not _is_plain(each)}
    if files and not (main in files and (here / main).read_bytes().startswith(_MARK.encode())):
        raise NotOurs(f"{place} was not made by nodeside-cluster: {main} has no mark", hint=_HINT)
    if others := sorted(files - {*names}):
        raise NotOurs(
            f"{place} has files that nodeside-cluster does not write: {', '.join(others[:5])}",
            hint="move them elsewhere: nodeside-cluster replaces the whole directory",
        )


def _is_plain(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
