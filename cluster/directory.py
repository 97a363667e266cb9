"""Let a directory of made files appear, whole or not at all. Called by cli.py.

The files are written into a directory beside it, which then takes its place by rename. What is
there is replaced only if we made it: its first file begins with our mark, and it holds no file that
we do not write. A crash between two renames leaves the old directory beside the new one's place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from nodeside import __version__
from nodeside.errors import ExitCode, NodesideError, SystemRefused

_MARK = "# Made by nodeside-cluster"
_MARKED = f"{_MARK} {__version__}: to change it, make it again.\n"


class NotOurs(NodesideError):
    """There is something else where a directory of ours was to be."""

    exit_code = ExitCode.USAGE
    reason = "NotOurs"


def write_directory(
    place: Path, files: Mapping[str, str], *, main: str, names: Collection[str] = ()
) -> None:
    """`main` is the file that carries our mark; `names` are those that we might have made before.

    Raises NotOurs, SystemRefused.
    """
    place = Path(os.path.abspath(place))  # noqa: PTH100 - `..` of a link is not meant
    _check(place, main, {*files, *names})
    new, old = (place.with_name(f".tmp-{place.name}-{which}-{os.getpid()}") for which in "no")
    try:
        _write(new, {**files, main: _MARKED + files[main]})
        _exchange(place, new, old)
    except OSError as exc:
        raise SystemRefused(f"{place} cannot be written: {exc}") from exc
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _check(place: Path, main: str, names: Collection[str]) -> None:
    if not os.path.lexists(place):
        return
    if place.is_symlink() or not place.is_dir():
        raise NotOurs(f"{place} is there, and is no directory", hint=_HINT)
    found = {str(path.relative_to(place)) for path in place.rglob("*") if not _is_plain(path)}
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


def _is_plain(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_marked(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline().startswith(_MARK)
    except OSError:
        return False


def _write(directory: Path, files: Mapping[str, str]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
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
