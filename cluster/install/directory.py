"""Writes a directory of generated files atomically.

The files are written into a temporary directory next to the target, which is then renamed to it.
An existing directory is replaced only if we made it: its main file begins with our mark, and it has
no file that we do not write. A crash leaves a directory `.tmp-NAME-…` next to the target (between
the two renames it is the old one); the next call for this target removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nodeside import __version__
from nodeside.errors import ExitCode, NodesideError, SystemRefused
from nodeside.filelock import take_lock

_MARK = "# Made by nodeside-cluster"
_MARKED = f"{_MARK} {__version__}: to change it, make it again.\n"
_PATIENCE = 5.0  # seconds to wait for a concurrent call


class NotOurs(NodesideError):
    """The target exists and was not made by us."""

    exit_code = ExitCode.USAGE
    reason = "NotOurs"


def write_directory(
    place: Path, files: Mapping[str, str], *, main: str, names: Collection[str] = ()
) -> None:
    """Write `files` to `place`. `main` is the file with our mark; `names` are files that an earlier
    call may have made.

    Raises NotOurs, SystemRefused.
    """
    place = Path(os.path.abspath(place))  # noqa: PTH100 - `..` of a link is not meant
    ours = {*files, *names}
    _check(place, main, ours)
    call = secrets.token_hex(4)
    new, old = (place.with_name(f".tmp-{place.name}-{which}-{call}") for which in "no")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _writing_beside(place) as alone:
            _write(new, {**files, main: _MARKED + files[main]})
            _exchange(place, new, old)
            if alone:
                _clear(place, ours)
    except OSError as exc:
        raise SystemRefused(f"{place} cannot be written: {exc.strerror or exc}") from exc
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextmanager
def _writing_beside(place: Path) -> Iterator[bool]:
    """Yield whether no other call writes there at the same time.

    If so, leftovers there are from killed calls. The lock is on the parent directory and is
    released when its holder ends. Another program may hold it, or the file system may not support
    locks; then only the cleanup is skipped.
    """
    try:
        fd = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        yield _locked(fd)
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        return take_lock(fd, within=_PATIENCE)
    except OSError:
        return False


def _clear(place: Path, names: Collection[str]) -> None:
    """Remove leftovers of killed calls for this place, except directories with foreign files."""
    mine = re.compile(rf"\.tmp-{re.escape(place.name)}-[no]-[0-9a-f]+")
    for path in place.parent.iterdir():
        if mine.fullmatch(path.name) and _is_plain(path) and _files(path) <= {*names}:
            shutil.rmtree(path, ignore_errors=True)


def _check(place: Path, main: str, names: Collection[str]) -> None:
    if not os.path.lexists(place):
        return
    if place.is_symlink() or not place.is_dir():
        raise NotOurs(f"{place} is there, and is no directory", hint=_HINT)
    found = _files(place)
    if not found:
        return
    if not _is_marked(place / main):
        raise NotOurs(f"{place} was not made by nodeside-cluster: {main} has no mark", hint=_HINT)
    if others := sorted(found - {*names}):
        raise NotOurs(
            f"{place} has files that nodeside-cluster does not write: {', '.join(others[:5])}",
            hint="move them elsewhere; what is made here is replaced as a whole",
        )


_HINT = "name a directory that does not exist yet: --output DIRECTORY"


def _files(directory: Path) -> set[str]:
    """Return the relative paths of everything in it except directories."""
    found = (path for path in directory.rglob("*") if not _is_plain(path))
    return {str(path.relative_to(directory)) for path in found}


def _is_plain(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_marked(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline().startswith(_MARK)
    except OSError:
        return False


def _write(directory: Path, files: Mapping[str, str]) -> None:
    directory.mkdir()
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def _exchange(place: Path, new: Path, old: Path) -> None:
    if not place.exists():
        new.rename(place)
        return
    place.rename(old)
    try:
        new.rename(place)
    except OSError:
        old.rename(place)
        raise
    shutil.rmtree(old)
