"""The directories of a source in which the driver may be built, and which of them is likely.

A source of a vendor may have several: the driver's, those of other drivers, of examples, and those
of the tests by which a configure finds out what a kernel has.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nodeside.errors import UsageError
from nodeside.log import escape_controls
from nodeside.spec.kbuild_list import TEMPLATE, read_kbuild_list, source_text
from nodeside.text.shortlist import shortlist
from nodeside.values import frozen

DEEPEST = 4  # directories below the source in which a Kbuild, Makefile or dkms.conf is looked for
DKMS_CONF = "dkms.conf"
CONFIGURES = ("configure", "autogen.sh", "bootstrap", "configure.ac", "CMakeLists.txt")
TOP_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")  # make reads the first that is there
_LISTED = 10  # directories in a message
_MODULES = 4  # of a directory in a message
_DIRECTORIES = 5000  # that are looked at; a kernel's tree has as many
_SOURCES = 20_000  # files, and bytes in them, in which device tables are looked for
_SOURCE_BYTES = 256 << 20
_DEVICE_TABLE = re.compile(r"^[ \t]*MODULE_DEVICE_TABLE\s*\(\s*(\w{1,20})", re.MULTILINE)
# Directories that have modules, as a rule, which are not the driver.
_ASIDE = re.compile(
    r"conf|config|configure|conftest.*|compat.*|test.*|examples?|tools?", re.IGNORECASE
)
_WORD = re.compile(r"[\w./-]+")
_RELEASE = re.compile(r"[-_.]?v?\d[\w.+~-]*$|[-_](?:driver|dkms|linux|kmod|module)$")


@frozen
class Candidate:
    """A directory whose `file` lists modules.

    `modules` are those that it names, `tables` the buses of the device tables in its sources. It is
    `configured` if a configure in `configured_at` makes that file, `computed` if its list is only
    known when it runs, and `nameless` if whoever builds it gives its modules their names.
    With a `dkms_conf`, dkms builds there, and `lists` tells whether kbuild can do so too.
    """

    directory: str
    configured: bool = False
    configured_at: str = "."
    file: str = "Makefile"
    modules: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    computed: bool = False
    nameless: bool = False
    dkms_conf: bool = False
    lists: bool = True

    @property
    def parts(self) -> tuple[str, ...]:
        return () if self.directory == "." else tuple(self.directory.split("/"))

    @property
    def aside(self) -> bool:
        """Return whether a part of its path is named like tests, examples or tools."""
        return any(_ASIDE.fullmatch(part) for part in self.parts)

    def in_words(self) -> str:
        """Return the directory with its modules and device tables, such as `src (chip; pci)`."""
        modules = shortlist(self.modules, _MODULES)
        if self.computed:
            modules = f"its {self.file} computes its list"
        facts = "; ".join(word for word in (modules, ", ".join(self.tables)) if word)
        words = f"{self.directory} ({facts})" if facts else self.directory
        return escape_controls(words, keep="")


def directories_in_words(candidates: Iterable[Candidate]) -> str:
    """Return the directories in words; a tree of backports has hundreds."""
    names = (escape_controls(each.directory, keep="") for each in candidates)
    return shortlist(names, _LISTED)


def candidates_in_words(candidates: Iterable[Candidate]) -> str:
    """Return the directories with what is known of each, in words."""
    return shortlist((each.in_words() for each in candidates), _LISTED)


def candidates_of(tree: Path) -> tuple[Candidate, ...]:
    """Return the directories, the highest first and those of tests last.

    Those that another directory builds too are left out.
    """
    found: list[Candidate] = []
    built: set[str] = set()
    for directory in _walk_directories(tree):
        candidate, below = _candidate_in(tree, directory)
        if candidate is not None and directory not in built:
            found.append(candidate)
        built |= {os.path.normpath(f"{directory}/{name}") for name in below}
    return tuple(sorted(_with_tables(tree, found), key=lambda each: each.aside))


def candidate_named(tree: Path, directory: str, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate that the user names. Raises UsageError."""
    plain = os.path.normpath(directory)
    for each in candidates:
        if each.directory == plain:
            return each
    named = None
    if not plain.startswith(("/", "..")):
        named, _ = _candidate_in(tree, plain)
    if named is None:
        raise UsageError(
            f"--directory {directory}: expected a directory of the source whose Kbuild or Makefile "
            f"lists modules; these do: {directories_in_words(candidates) or 'none'}"
        )
    return named


def choose_likeliest(
    tree: Path, candidates: Sequence[Candidate], name: str = ""
) -> tuple[Candidate | None, str]:
    """Return the candidate to build and why, in words; None if nothing speaks for one of them.

    `name` is that of the source's directory.
    """
    names = directories_in_words(candidates)
    if len(candidates) == 1 and not candidates[0].aside:
        return candidates[0], "the only directory with obj-m"
    for left, why in _narrow_down(tree, candidates, name):
        if len(left) == 1:
            return left[0], f"{why}: {names}"
    return None, f"several directories have obj-m: {names}"


def _narrow_down(
    tree: Path, candidates: Sequence[Candidate], name: str
) -> Iterator[tuple[Sequence[Candidate], str]]:
    """Yield fewer and fewer candidates, each time with what speaks for them."""
    highest = _highest_candidates([each for each in candidates if not each.aside])
    if highest and all(_is_below(each, highest[0]) for each in candidates):
        yield highest, "above the other directories with obj-m"
    yield highest, "the only one that is not named as a test or a tool, of those with obj-m"
    with_table = [each for each in highest if each.tables]
    yield with_table, "alone has a MODULE_DEVICE_TABLE, of those with obj-m"
    left = with_table or highest
    alike = [each for each in left if _is_named_like(each, name)]
    yield alike, "alone is named like the source, of those with obj-m"
    yield _sort_by_makefiles(tree, left), "alone is in the Makefile above, of those with obj-m"
    least = min((len(each.parts) for each in left), default=0)
    if not with_table:
        yield [each for each in left if len(each.parts) == least], "the highest of those with obj-m"


def list_likely_drivers(tree: Path, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that may be meant, first those that a Makefile lists, in its order."""
    highest = _highest_candidates([each for each in candidates if not each.aside])
    listed = _sort_by_makefiles(tree, highest)
    return [*listed, *(each for each in highest if each not in listed)] or [*candidates]


def _candidate_in(tree: Path, directory: str) -> tuple[Candidate | None, tuple[str, ...]]:
    """Return the candidate of a directory, and the directories below that it builds too."""
    path = tree / directory
    listed = read_kbuild_list(path)
    configured_at = None
    if not listed and read_kbuild_list(path, TEMPLATE):
        configured_at = _configuring_directory(tree, directory)
    configured = configured_at is not None
    has_conf = (path / DKMS_CONF).is_file()
    if not (listed or configured or has_conf):
        return None, ()
    candidate = Candidate(
        directory,
        configured=configured,
        configured_at=configured_at or ".",
        file=DKMS_CONF if has_conf else listed.computed or "Makefile",
        modules=listed.modules,
        computed=bool(listed.computed),
        nameless=listed.listed and not (listed.modules or listed.directories),
        dkms_conf=has_conf,
        lists=bool(listed) or configured,
    )
    return candidate, listed.directories


def _configuring_directory(tree: Path, directory: str) -> str | None:
    """Return the highest directory at or above this one that something configures, if any."""
    above = [str(each) for each in (*Path(directory).parents[::-1], Path(directory))]
    there = (each for each in above if any((tree / each / name).is_file() for name in CONFIGURES))
    return next(there, None)


def _highest_candidates(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that are below no other one."""
    parts = [each.parts for each in candidates]
    there = {*parts}
    return [
        each
        for each, own in zip(candidates, parts, strict=True)
        if not any(own[:depth] in there for depth in range(len(own)))
    ]


def _is_below(candidate: Candidate, other: Candidate) -> bool:
    return candidate.parts[: len(other.parts)] == other.parts


def _is_named_like(candidate: Candidate, name: str) -> bool:
    """Return whether a directory, or a module of it, is named like the source."""
    wanted = _plain_name(name)
    own = {_plain_name(word) for word in (*candidate.parts[-1:], *candidate.modules)}
    return bool(wanted) and wanted in own


def _plain_name(name: str) -> str:
    for _ in range(3):  # such as `chip-linux-driver-1.2`
        name = _RELEASE.sub("", name)
    return name.lower().replace("-", "_")


def _sort_by_makefiles(tree: Path, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that a Makefile above them names, in its order.

    Libraries are left out, unless there is nothing else. A library is a directory whose module gets
    its name from whoever builds it (`obj-m := $(NAME).o`).
    """
    by_directory = {each.directory: each for each in candidates}
    above = {each.parts[:depth]: None for each in candidates for depth in range(len(each.parts))}
    listed: dict[str, None] = {}
    for parts in sorted(above, key=len):
        here = "/".join(parts) or "."
        text = next((t for name in TOP_MAKEFILES if (t := source_text(tree / here / name))), "")
        for word in dict.fromkeys(_WORD.findall(text)):
            directory = os.path.normpath(f"{here}/{word.strip('/')}")
            if directory in by_directory:
                listed[directory] = None
    named = [by_directory[each] for each in listed]
    return [each for each in named if not each.nameless] or named


def _walk_directories(tree: Path) -> Iterator[str]:
    """Yield the directories, the highest first, relative to the tree."""
    waiting = deque([(".", 0)])
    for _ in range(_DIRECTORIES):
        if not waiting:
            return
        directory, depth = waiting.popleft()
        yield directory
        if depth < DEEPEST:
            with os.scandir(tree / directory) as entries:
                names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
            above = "" if directory == "." else f"{directory}/"
            waiting += [(f"{above}{name}", depth + 1) for name in names if name[0] != "."]


def _with_tables(tree: Path, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates with their device tables: those of the sources in and below them."""
    by_parts = {each.parts: each.directory for each in candidates}
    tables: dict[str, set[str]] = {each.directory: set() for each in candidates}
    for parts, text in _read_sources(tree) if candidates else ():
        buses = {found[1] for found in _DEVICE_TABLE.finditer(text)}
        for depth in range(len(parts) + 1) if buses else ():
            if (above := by_parts.get(parts[:depth])) is not None:
                tables[above] |= buses
    return [replace(each, tables=tuple(sorted(tables[each.directory]))) for each in candidates]


def _read_sources(tree: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the directory, in parts, and the text of each source in C, to a limit."""
    files = size = 0
    for here, below, names in os.walk(tree):
        below[:] = sorted(name for name in below if name[0] != ".")
        relative = os.path.relpath(here, tree)
        parts = () if relative == "." else tuple(relative.split("/"))
        for name in names:
            if not name.endswith((".c", ".h")):
                continue
            if files >= _SOURCES or size >= _SOURCE_BYTES:
                return
            text = source_text(Path(here) / name)
            files, size = files + 1, size + len(text)
            if "MODULE_DEVICE_TABLE" in text:
                yield parts, text
