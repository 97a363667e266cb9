"""Which files of a directory are a driver's source, and which only lie beside it.

The digest and the copy in the shared directory both go by `source_files`, so what is left out is
part of what the digest means. Left out are, besides the patterns of `source.exclude`: descriptions
of the driver, `.git`, backups of editors, what nodeside writes (bundles, its cache, the shared
directory), the secrets of the driver's side, and what kbuild made and would make again. No file is
left out for being called `*.o` or `Module.symvers`: vendors ship such.

Reads names, and the `.NAME.cmd` files of kbuild; writes nothing.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from nodeside.contract import STORE_TAG
from nodeside.errors import SpecError
from nodeside.files import TEMPORARY_PREFIX

# Descriptions of a driver that may lie beside its source; what of them decides the build is in
# the key already.
_NOT_SOURCE = frozenset({"driver.yaml", "trial.yaml", ".git"})
_BACKUPS = ("*~", "#*#", ".#*", ".*.sw[a-p]")  # of any editor, Emacs, Emacs's locks, Vim
_BUNDLE = re.compile(rf"{STORE_TAG.pattern}(\.tar\.gz(\.sha256)?)?")
_BESIDE_BUNDLES = (
    ".lock",
    f"{TEMPORARY_PREFIX}*",
    ".damaged-*",
    ".built-*",
)  # see `cache`, `directory_store`
_CMD_LIMIT = 1 << 20  # bytes; that of the largest compiler command has some 100 KiB
_CMD = re.compile(r"(?:saved)?cmd_(?P<target>\S+) :=(?P<command>[^\n]*)")
_CMD_SOURCE = re.compile(r"^source_\S+ := (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class NotSource:
    """What is left out for one driver on one machine.

    `patterns` are those of `source.exclude`, `caches` the directories that hold bundles, `shared`
    the directory shared with a sidecar, and `ours` files that no build may see, such as the key
    that signs; they need not exist.
    """

    patterns: tuple[str, ...] = ()
    caches: tuple[Path, ...] = ()
    shared: Path | None = None
    ours: tuple[Path, ...] = ()


def source_files(tree: Path, not_source: NotSource) -> Iterator[tuple[Path, Path]]:
    """Every file and link of the source, relative and whole, in a stable order.

    Directories are there only through what is in them. Raises SpecError where one cannot be read.
    """
    found = []
    caches = {os.path.realpath(path) for path in not_source.caches}
    shared = os.path.realpath(not_source.shared) if not_source.shared else ""
    hidden = {same for path in not_source.ours if (same := _file(path)) is not None}
    for directory, names, files in os.walk(tree, onerror=_cannot_list):
        here = Path(directory)
        out = {*_ours(here, {*names, *files}, caches), *_products(tree, here, set(files))}
        if here == tree:
            out |= _NOT_SOURCE
        out |= {
            n for n in (*names, *files) if _is_excluded((here / n).relative_to(tree), not_source)
        }
        names[:] = [name for name in names if name not in out]
        if shared:
            names[:] = [name for name in names if os.path.realpath(here / name) != shared]
        links = [name for name in names if (here / name).is_symlink()]
        paths = [here / name for name in (*files, *links) if name not in out]
        found += [path for path in paths if not hidden or _file(path) not in hidden]
    relative = ((path.relative_to(tree), path) for path in found)
    yield from sorted(relative, key=lambda pair: os.fsencode(pair[0].as_posix()))


def _file(path: Path) -> tuple[int, int] | None:
    """What tells a file by whatever name and link, None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_excluded(relative: Path, not_source: NotSource) -> bool:
    name = relative.name
    return any(fnmatchcase(name, pattern) for pattern in _BACKUPS) or any(
        _matches(relative, pattern) for pattern in not_source.patterns
    )


def _matches(relative: Path, pattern: str) -> bool:
    """Whether a pattern means this path: by its name, or by each part if the pattern has a `/`.

    `fnmatch` needs no more than length times length steps, whatever the pattern.
    """
    words = [word for word in pattern.split("/") if word not in ("", ".")]
    if "/" not in pattern.rstrip("/"):
        return bool(words) and fnmatchcase(relative.name, words[0])
    return len(words) == len(relative.parts) and all(map(fnmatchcase, relative.parts, words))


def _ours(directory: Path, names: set[str], caches: set[str]) -> set[str]:
    """What nodeside wrote: bundles wherever they lie, and what lies beside them or in the cache."""
    bundles = {name for name in names if _BUNDLE.fullmatch(name)}
    if not bundles and os.path.realpath(directory) not in caches:
        return set()
    return bundles | {n for n in names if any(fnmatchcase(n, each) for each in _BESIDE_BUNDLES)}


def _products(tree: Path, directory: Path, files: set[str]) -> set[str]:
    """What kbuild made here, with its notes of how: `NAME` has `.NAME.cmd` beside it."""
    found: set[str] = set()
    for name in files:
        notes = f".{name}.cmd"
        if notes in files and _is_product(tree, directory, name):
            found |= {name, notes}
            if name.endswith(".mod.o"):
                found.add(f"{name[:-1]}c")  # made by modpost, which leaves no note
    return found


def _is_product(tree: Path, directory: Path, name: str) -> bool:
    """Whether kbuild made this file, and can make it again.

    An object of which neither source nor parts are there is a blob that came with the notes of its
    maker; an empty file of notes keeps kbuild from complaining of one.
    """
    text = _text(directory / f".{name}.cmd")
    made = _CMD.match(text)
    if made is None:
        return False
    if name.startswith(".") or not name.endswith((".o", ".a")):
        return True
    source = _CMD_SOURCE.search(text)
    parts = [source[1]] if source else _parts(directory, made["command"], made["target"])
    base = posixpath.dirname(made["target"])
    return bool(parts) and all(_is_in(tree, directory, part, base) for part in parts)


def _parts(directory: Path, command: str, target: str) -> list[str]:
    """The objects that a link or an archive is made of; those of a module stand in a file."""
    words = []
    for word in command.split():
        if word.startswith("@"):
            words += _text(directory / posixpath.basename(word)).split()
        else:
            words.append(word)
    return [word for word in words if word.endswith((".o", ".o_shipped")) and word != target]


def _is_in(tree: Path, directory: Path, part: str, base: str) -> bool:
    """Whether a part of a product is in the tree, which may have moved since it was made."""
    with suppress(OSError, ValueError):
        path = Path(os.path.normpath(directory / posixpath.relpath(part, base or ".")))
        return path.is_relative_to(os.path.normpath(tree)) and path.is_file()
    return False


def _text(path: Path) -> str:
    """The text of a regular file, "" if there is none or it is no text of kbuild's size."""
    with suppress(OSError):
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _CMD_LIMIT:
            return path.read_text(errors="replace")
    return ""


def _cannot_list(exc: OSError) -> NoReturn:
    """What cannot be read must not be left out: the digest would be that of another source."""
    raise unreadable(f"cannot read {exc.filename}: {exc.strerror}") from exc


def unreadable(problem: str) -> SpecError:
    """The error for a source that cannot be read whole."""
    return SpecError(
        f"the source cannot be read: {problem}",
        hint="spec.source.path in driver.yaml must be a tree that can be read",
    )
