"""The directories of a source in which kbuild may build the driver, and which of them is likely.

A source of a vendor may have several: the driver's, those of other drivers, of examples, and those
of the tests by which a configure finds out what a kernel has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from nodeside.errors import UsageError
from nodeside.spec.bare_source import TEMPLATE, listed_directories, lists_modules, source_text
from nodeside.text.shortlist import shortlist
from nodeside.values import frozen

DEEPEST = 4  # directories below the source in which a Kbuild or Makefile is looked for
_LISTED = 10  # directories in a message
_FILES = 5000  # of a directory in which a device table is looked for
_DEVICE_TABLE = re.compile(r"^[ \t]*MODULE_DEVICE_TABLE\s*\(", re.MULTILINE)


@frozen
class Candidate:
    """A directory whose Kbuild or Makefile lists modules; `configured` if a configure makes it."""

    directory: str
    configured: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        return Path(self.directory).parts


def directories_in_words(candidates: Iterable[Candidate]) -> str:
    """Return the directories in words; a tree of backports has hundreds."""
    return shortlist((each.directory for each in candidates), _LISTED)


def candidates_of(tree: Path) -> tuple[Candidate, ...]:
    """Return the directories, the highest first; none that another one builds too."""
    found: list[Candidate] = []
    built: set[Path] = set()
    has_configure = (tree / "configure").is_file()
    for directory in _walk_directories(tree):
        plain = lists_modules(directory)
        configured = has_configure and lists_modules(directory, TEMPLATE)
        if (plain or configured) and directory not in built:
            found.append(Candidate(str(directory.relative_to(tree)), configured))
        if plain:
            built |= {directory / name for name in listed_directories(directory)}
    return tuple(found)


def candidate_named(tree: Path, directory: str) -> Candidate:
    """Return the candidate that the user names. Raises UsageError."""
    candidates = candidates_of(tree)
    plain = os.path.normpath(directory)
    for each in candidates:
        if each.directory == plain:
            return each
    if plain.startswith(("/", "..")) or not lists_modules(tree / plain):
        raise UsageError(
            f"--directory {directory}: expected a directory of the source whose Kbuild or Makefile "
            f"lists modules; these do: {directories_in_words(candidates) or 'none'}"
        )
    return Candidate(plain)


def choose_likeliest(tree: Path, candidates: Sequence[Candidate]) -> tuple[Candidate | None, str]:
    """Return the candidate to build and why, in words; None if nothing speaks for one of them."""
    if len(candidates) == 1:
        return candidates[0], "the only directory with obj-m"
    names = directories_in_words(candidates)
    highest = _highest_candidates(candidates)
    if len(highest) == 1:
        return highest[0], f"above the other directories with obj-m: {names}"
    tables = [each for each in highest if _has_device_table(tree / each.directory)]
    if len(tables) == 1:
        return tables[0], f"alone has a MODULE_DEVICE_TABLE, of those with obj-m: {names}"
    depths = [len(each.parts) for each in highest]
    if not tables and depths and depths.count(min(depths)) == 1:
        return highest[depths.index(min(depths))], f"the highest of those with obj-m: {names}"
    return None, f"several directories have obj-m: {names}"


def _highest_candidates(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that are below no other one."""
    parts = [each.parts for each in candidates]
    there = {*parts}
    return [
        each
        for each, own in zip(candidates, parts, strict=True)
        if not any(own[:depth] in there for depth in range(len(own)))
    ]


def _walk_directories(tree: Path) -> Iterator[Path]:
    waiting = [(tree, 0)]
    while waiting:
        directory, depth = waiting.pop(0)
        yield directory
        if depth < DEEPEST:
            with os.scandir(directory) as entries:
                names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
            waiting += [(directory / name, depth + 1) for name in names if name[0] != "."]


def _has_device_table(directory: Path) -> bool:
    return any(
        _DEVICE_TABLE.search(source_text(path)) for path in islice(_walk_sources(directory), _FILES)
    )


def _walk_sources(directory: Path) -> Iterator[Path]:
    for here, _, files in os.walk(directory):
        yield from (Path(here) / name for name in files if name.endswith((".c", ".h")))
