"""The host's modprobe.d: what an administrator says of the modules of the kernel's tree.

The kernel reads none of it: modprobe does, and who makes the module system calls has to. Files and
their order are those of modprobe.d(5): only `*.conf`, by name, and of one name only the file in
the first of the directories.

A pod has no mount of these directories: a hostPath of a directory that a node lacks would keep the
pod from starting, or make the directory. `/proc/1/root` is the host's root, which needs the
SYS_PTRACE that the pod has for the holders of a module. A link of the host is resolved below the
host's root, never below the container's.

What a host has there must not fill the memory of a pod: of all files together so many bytes are
read, of all lines so many are kept, and what is left out is told.
"""

from __future__ import annotations

import errno
import heapq
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path

from nodeside.driver.module.parameters import parse_arguments
from nodeside.driver.module.softdeps import Softdeps, parse_softdeps
from nodeside.driver.node.command_line import ArgumentsOfModule
from nodeside.errors import NodesideError
from nodeside.protocol.module_names import kernel_name
from nodeside.system.files import open_untrusted
from nodeside.system.host import Host
from nodeside.values import frozen

_DIRECTORIES = (
    "etc/modprobe.d",
    "run/modprobe.d",
    "usr/local/lib/modprobe.d",
    "usr/lib/modprobe.d",
    "lib/modprobe.d",
)
_KEYWORDS = ("blacklist", "options", "install", "softdep")
_BYTES_LIMIT = 1 << 20  # of all files; those of a distribution have some 20 KiB
_LINES_LIMIT = 8192  # of all files
_FILES_LIMIT = 512  # of a directory
_UNREAD_SHOWN = 8
_COMMAND_SHOWN = 256  # characters
_LINKS_LIMIT = 40  # as the kernel's


@frozen
class ModprobeConfig:
    """What modprobe.d says. Names of modules have `_`; those of the last two may be patterns.

    `installs` have the beginning of each command, which is never run. `unread` are sentences about
    files and directories that were not read.
    """

    options: Mapping[str, ArgumentsOfModule] = field(default_factory=dict)
    blacklist: frozenset[str] = frozenset()
    installs: Mapping[str, str] = field(default_factory=dict)
    softdep_lines: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    def install_command(self, module: str) -> str:
        """Return what modprobe would run instead of loading a module; "" if nothing."""
        return self.installs.get(_first_match(self.installs, module), "")

    def softdeps(self, module: str) -> Softdeps | None:
        """Return the soft dependencies of a module, None if modprobe.d has no line for it."""
        pattern = _first_match(self.softdep_lines, module)
        return parse_softdeps([self.softdep_lines[pattern]]) if pattern else None

    def why_unwanted(self, module: str) -> str:
        """Return why a module that is only a soft dependency is not loaded; "" if it may be."""
        if module in self.blacklist:
            return "the host's modprobe.d has it in blacklist"
        command = self.install_command(module)
        return f"the host's modprobe.d has `install {module} {command}`" if command else ""


NOTHING_CONFIGURED = ModprobeConfig()


def read_modprobe_config(host: Host) -> ModprobeConfig:
    """Read modprobe.d of the host: below its root, or below that of its first process."""
    files, unread = _find_files(host.root)
    if not files and not unread and host.root != Path("/"):
        files, unread = _find_files(host.proc / "1" / "root")
    return parse_modprobe_config(_read_texts(files, unread), unread)


def _read_texts(files: Mapping[str, tuple[Path, str]], unread: list[str]) -> Iterator[str]:
    """Yield the texts of the files by name, and add to `unread` what was not read."""
    left = _BYTES_LIMIT
    names = sorted(files)
    for number, name in enumerate(names):
        try:
            path = _resolve_inside(*files[name])
            if path.name == "null":
                continue  # /dev/null masks the files of that name in the other directories
            with open_untrusted(path, limit=_BYTES_LIMIT) as file:
                data = file.read(left + 1)
        except (OSError, NodesideError) as problem:
            unread.append(f"{name} of the host's modprobe.d was not read: {problem}")
            continue
        left -= len(data)
        if left < 0:
            unread.append(
                f"{len(names) - number} of {len(names)} files of the host's modprobe.d were not "
                f"read, from /{files[name][1]} on: of all together {_BYTES_LIMIT} bytes are read"
            )
            return
        yield data.decode(errors="replace")


def parse_modprobe_config(texts: Iterable[str], unread: list[str] | None = None) -> ModprobeConfig:
    """Parse files in their order. Of options the last counts, of other lines the first.

    `unread` is added to while `texts` are read.
    """
    unread = [] if unread is None else unread
    options: dict[str, dict[str, str | None]] = {}
    blacklist: set[str] = set()
    installs: dict[str, str] = {}
    softdeps: dict[str, str] = {}
    lines = (line for text in texts for line in _parse_lines(text))
    for number, (keyword, name, rest) in enumerate(lines):
        if number == _LINES_LIMIT:
            unread.append(
                f"the host's modprobe.d was read only up to `{keyword} {name[:64]}`: "
                f"{_LINES_LIMIT} lines are read"
            )
            break
        if keyword == "blacklist":
            blacklist.add(name)
        elif keyword == "options" and rest:
            given = options.setdefault(name, {})
            given |= {kernel_name(word): value for word, value in parse_arguments(rest)}
        elif keyword == "install" and rest:
            installs.setdefault(name, rest[:_COMMAND_SHOWN])
        elif keyword == "softdep" and rest:
            softdeps.setdefault(name, rest)
    return ModprobeConfig(options, frozenset(blacklist), installs, softdeps, _first_of(unread))


def _parse_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the keyword, the module and the rest. A backslash at its end continues a line."""
    for line in io.StringIO(text.replace("\\\n", ""), newline="\n"):
        words = line.split(maxsplit=2)
        if len(words) >= 2 and words[0] in _KEYWORDS:
            yield words[0], kernel_name(words[1]), words[2].strip() if len(words) > 2 else ""


def _first_of(unread: Sequence[str]) -> tuple[str, ...]:
    """Return the first sentences, and one for the rest."""
    more = len(unread) - _UNREAD_SHOWN
    rest = (f"{more} more files of the host's modprobe.d were not read",) if more > 0 else ()
    return (*unread[:_UNREAD_SHOWN], *rest)


def _first_match(patterns: Mapping[str, str], module: str) -> str:
    name = kernel_name(module)
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), "")


def _find_files(root: Path) -> tuple[dict[str, tuple[Path, str]], list[str]]:
    """Return the files by name, of one name that of the first directory, and what was not read."""
    files: dict[str, tuple[Path, str]] = {}
    unread: list[str] = []
    for directory in _DIRECTORIES:
        try:
            names = _first_names(_resolve_inside(root, directory))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as problem:
            words = f"modprobe.d of the host was not read: {root / directory}: {problem.strerror}"
            unread = unread or [words]  # what denies one directory denies all
            continue
        if len(names) > _FILES_LIMIT:
            first = names.pop()
            words = f"{root / directory} has more than {_FILES_LIMIT} files: none was read from"
            unread.append(f"{words} {first} on")
        for name in names:
            if name not in files:
                files[name] = root, f"{directory}/{name}"
    return files, unread


def _first_names(directory: Path) -> list[str]:
    """Return the first names of files in a directory, and one more than are read."""
    with os.scandir(directory) as entries:
        names = (entry.name for entry in entries if entry.name.endswith(".conf"))
        return heapq.nsmallest(_FILES_LIMIT + 1, names)


def _resolve_inside(root: Path, path: str) -> Path:
    """Resolve all links of a path as if `root` were the root. Raises OSError if there are too many.

    A path that does not exist is returned as it is.
    """
    left, links = path.split("/")[::-1], 0
    done: list[str] = []
    while left:
        part = left.pop()
        if part in ("", ".", "/"):
            continue
        if part == "..":
            done = done[:-1]
            continue
        here = root.joinpath(*done, part)
        if not here.is_symlink():
            done.append(part)
            continue
        links += 1
        if links > _LINKS_LIMIT:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(here))
        target = here.readlink()
        if target.is_absolute():
            done = []
        left += target.parts[::-1]
    return root.joinpath(*done)
