"""Decides which files of a directory are a driver's source.

The digest and the copy in the shared directory both use `source_files`, so the exclusions are part
of what the digest means. Excluded are the patterns of `source.exclude`, descriptions of the driver,
`.git`, editor backups, files written by nodeside (bundles, its cache, the shared directory), the
secrets of the driver's side, and files that kbuild made and would make again. No file is excluded
just for being named `*.o` or `Module.symvers`: vendors ship such files.

Reads names, and the `.NAME.cmd` files of kbuild; writes nothing.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from nodeside.errors import SpecError
from nodeside.protocol.bundle_key import STORE_TAG
from nodeside.system.files import TEMPORARY_PREFIX
from nodeside.values import frozen

# Descriptions of a driver that may lie next to its source. The parts of them that affect the build
# are already in the key.
_NOT_SOURCE = frozenset({"driver.yaml", "trial.yaml", ".git"})
_BACKUPS = ("*~", "#*#", ".#*", ".*.sw[a-p]")  # of many editors, Emacs, Emacs's locks, Vim
_BUNDLE = re.compile(rf"{STORE_TAG.pattern}(\.tar\.gz(\.sha256)?)?")
# See bundle/cache.py and store/directory.py.
_BESIDE_BUNDLES = (".lock", f"{TEMPORARY_PREFIX}*", ".damaged-*", ".built-*")
_CMD_LIMIT = 1 << 20  # bytes; the file of the largest compiler command has about 100 KiB
_CMD = re.compile(r"(?:saved)?cmd_(?P<target>\S+) :=(?P<command>[^\n]*)")
_CMD_SOURCE = re.compile(r"^source_\S+ := (\S+)$", re.MULTILINE)


@frozen
class NotSource:
    """The exclusions for one driver on one machine.

    `patterns` come from `source.exclude`, `caches` are the directories that hold bundles, `shared`
    is the directory shared with a sidecar, and `ours` are files that no build may see, such as the
    signing key; they need not exist.
    """

    patterns: tuple[str, ...] = ()
    caches: tuple[Path, ...] = ()
    shared: Path | None = None
    ours: tuple[Path, ...] = ()


def source_files(tree: Path, not_source: NotSource) -> Iterator[tuple[Path, Path]]:
    """Yield the relative and the full path of every file and link of the source, sorted.

    Directories appear only through their contents. Raises SpecError if one cannot be read.
    """
    sources = []
    caches = {os.path.realpath(path) for path in not_source.caches}
    shared = os.path.realpath(not_source.shared) if not_source.shared else ""
    hidden = {same for path in not_source.ours if (same := _file_id(path)) is not None}
    for directory, names, files in os.walk(tree, onerror=_cannot_list):
        here = Path(directory)
        excluded = {
            *_own_files(here, {*names, *files}, caches),
            *_kbuild_products(tree, here, set(files)),
        }
        if here == tree:
            excluded |= _NOT_SOURCE
        excluded |= {
            n for n in (*names, *files) if _is_excluded((here / n).relative_to(tree), not_source)
        }
        names[:] = [name for name in names if name not in excluded]
        if shared:
            names[:] = [name for name in names if os.path.realpath(here / name) != shared]
        links = [name for name in names if (here / name).is_symlink()]
        paths = [here / name for name in (*files, *links) if name not in excluded]
        sources += [path for path in paths if not hidden or _file_id(path) not in hidden]
    relative = ((path.relative_to(tree), path) for path in sources)
    yield from sorted(relative, key=lambda pair: os.fsencode(pair[0].as_posix()))


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return device and inode, which identify a file under any name or link; None if missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_excluded(relative: Path, not_source: NotSource) -> bool:
    name = relative.name
    return any(fnmatchcase(name, pattern) for pattern in _BACKUPS) or any(
        _matches_pattern(relative, pattern) for pattern in not_source.patterns
    )


def _matches_pattern(relative: Path, pattern: str) -> bool:
    """Return whether a pattern matches the name, or all parts of the path if it has a `/`.

    `fnmatch` needs at most length times length steps, for any pattern.
    """
    words = [word for word in pattern.split("/") if word not in ("", ".")]
    if "/" not in pattern.rstrip("/"):
        return bool(words) and fnmatchcase(relative.name, words[0])
    return len(words) == len(relative.parts) and all(map(fnmatchcase, relative.parts, words))


def _own_files(directory: Path, names: set[str], caches: set[str]) -> set[str]:
    """Return nodeside's own files: bundles anywhere, and files next to them or in a cache."""
    bundles = {name for name in names if _BUNDLE.fullmatch(name)}
    if not bundles and os.path.realpath(directory) not in caches:
        return set()
    return bundles | {n for n in names if any(fnmatchcase(n, each) for each in _BESIDE_BUNDLES)}


def _kbuild_products(tree: Path, directory: Path, files: set[str]) -> set[str]:
    """Return kbuild's products here and their command files: `.NAME.cmd` belongs to `NAME`."""
    products: set[str] = set()
    for name in files:
        command_file = f".{name}.cmd"
        if command_file in files and _is_product(tree, directory, name):
            products |= {name, command_file}
            if name.endswith(".mod.o"):
                products.add(f"{name[:-1]}c")  # made by modpost, which writes no .cmd file
    return products


def _is_product(tree: Path, directory: Path, name: str) -> bool:
    """Return whether kbuild made this file and can make it again.

    An object whose source or parts are missing is a blob that came with its maker's .cmd file. An
    empty .cmd file belongs to a blob too: it keeps kbuild from complaining about one.
    """
    text = _read_text(directory / f".{name}.cmd")
    match = _CMD.match(text)
    if match is None:
        return False
    if name.startswith(".") or not name.endswith((".o", ".a")):
        return True
    source = _CMD_SOURCE.search(text)
    parts = [source[1]] if source else _linked_objects(directory, match["command"], match["target"])
    base = posixpath.dirname(match["target"])
    return bool(parts) and all(_is_in(tree, directory, part, base) for part in parts)


def _linked_objects(directory: Path, command: str, target: str) -> list[str]:
    """Return the objects that are linked or archived; a module lists its objects in a file."""
    words = []
    for word in command.split():
        if word.startswith("@"):
            words += _read_text(directory / posixpath.basename(word)).split()
        else:
            words.append(word)
    return [word for word in words if word.endswith((".o", ".o_shipped")) and word != target]


def _is_in(tree: Path, directory: Path, part: str, base: str) -> bool:
    """Return whether a part of a product is in the tree, which may have moved since the build."""
    with suppress(OSError, ValueError):
        path = Path(os.path.normpath(directory / posixpath.relpath(part, base or ".")))
        return path.is_relative_to(os.path.normpath(tree)) and path.is_file()
    return False


def _read_text(path: Path) -> str:
    """Return the text of a regular file; "" if there is none or it exceeds `_CMD_LIMIT`."""
    with suppress(OSError):
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _CMD_LIMIT:
            return path.read_text(errors="replace")
    return ""


def _cannot_list(exc: OSError) -> NoReturn:
    """Raise SpecError. Skipping an unreadable directory would give another source's digest."""
    raise unreadable_error(f"cannot read {exc.filename}: {exc.strerror}") from exc


def unreadable_error(problem: str) -> SpecError:
    """Return the error for a source that cannot be read completely."""
    return SpecError(
        f"the source cannot be read: {problem}",
        hint="spec.source.path in driver.yaml must be a tree that can be read",
    )
