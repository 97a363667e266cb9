"""The ways in which a source may be built, the likeliest first.

A way is a BuildSettings. There are five kinds: dkms; kbuild, where modules are listed; make with
the vendor's own Makefile, from the top down to where modules are listed; a configure, then kbuild
or make; and cmake.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.spec.kbuild_list import has_rules, source_text
from nodeside.trial.target.candidates import TOP_MAKEFILES, Candidate

# Failures of a way after which another one may do: those that are about the source.
OF_THE_WAY = (FailureKind.BAD_SOURCE, FailureKind.COMPILE, FailureKind.NO_MODULE)
_MORE_TARGETS = ("modules", "all")  # where the first target of a Makefile builds nothing
_KBUILD = 'make -C "$NODESIDE_KERNEL_DIR" M="$PWD"/{} modules'
_CMAKE = 'cmake -S . -B cmake-build && cmake --build cmake-build -j "$NODESIDE_JOBS"'
_MAKES_CONFIGURE = ("autogen.sh", "bootstrap")
_CONFIGURE_LIMIT = 4 << 20  # bytes; a configure made by autoconf has about 1 MiB
# The option by which a configure is told where the kernel's headers are: --with-NAME=DIR.
_HEADERS_OPTION = re.compile(
    r"--with-(linux(?:-(?:obj|dir|headers|build))?|kernel(?:-?(?:dir|source|headers|build|path))?"
    r"|ksource|kbuild|kdir)=|(?:AC_ARG_WITH|AX_ARG_WITH)\(\s*\[?(linux(?:-obj)?|kernel(?:-?dir)?)\b"
)


def likely_ways(
    tree: Path, dkms: Candidate | None, listing: Candidate | None, *, only_listed: bool = False
) -> list[BuildSettings]:
    """Return the ways to build `tree`.

    `dkms` is the directory with the dkms.conf, `listing` the one that lists modules. `only_listed`
    leaves out the ways that build more than the listed modules.
    """
    ways = []
    if dkms is not None:
        ways.append(BuildSettings(BuildKind.DKMS, (), directory=dkms.directory))
    if listing is not None and not listing.configured:
        ways.append(BuildSettings(BuildKind.KBUILD, (), directory=listing.directory))
    configured = listing is not None and listing.configured
    if configured:
        ways += _configured_ways(tree, listing)
    there = [] if listing is None or configured else [listing.directory]
    above = [] if only_listed or not there else Path(there[0]).parents[::-1]
    for place in dict.fromkeys(map(str, (*above, *there) if there else (".",))):
        if _has_makefile(tree / place):
            ways.append(_command_way("make", directory=place))
    if not (configured or only_listed):
        ways += _configured_ways(tree, None)
    return ways


def further_ways(tree: Path, way: BuildSettings) -> list[BuildSettings]:
    """Return the other targets of a Makefile whose first one has built no module."""
    if way.command != ("make",):
        return []
    targets: set[str] = set()
    for line in _makefile_text(tree / way.directory).splitlines():
        head, colon, rest = line.partition(":")
        if colon and line[:1] not in ("\t", " ", "#") and "=" not in head and rest[:1] != "=":
            targets.update(head.split())
    return [
        _command_way("make", target, directory=way.directory)
        for target in _MORE_TARGETS
        if target in targets
    ]


def way_in_words(way: BuildSettings) -> str:
    """Return the way as a person would type it, or `kbuild in src`."""
    if way.kind is not BuildKind.COMMAND:
        return f"{way.kind.value} in {way.directory}"
    words = way.command[-1] if way.command[:2] == ("sh", "-c") else shlex.join(way.command)
    return words if way.directory == "." else f"{words} in {way.directory}"


def configures_first(way: BuildSettings) -> bool:
    """Return whether the way configures the source before it builds it."""
    return way.kind is BuildKind.COMMAND and any(
        word in way.command[-1] for word in ("configure", "cmake ")
    )


def _command_way(*words: str, directory: str = ".") -> BuildSettings:
    return BuildSettings(BuildKind.COMMAND, (), directory=directory, command=words)


def _has_makefile(directory: Path) -> bool:
    return any((directory / name).is_file() for name in TOP_MAKEFILES) and has_rules(
        directory, TOP_MAKEFILES
    )


def _makefile_text(directory: Path) -> str:
    return next((text for name in TOP_MAKEFILES if (text := source_text(directory / name))), "")


def _configured_ways(tree: Path, listing: Candidate | None) -> list[BuildSettings]:
    """Return the ways of a source that is configured first, as its README would have them.

    `listing` is the directory whose Makefile the configure makes, None for a make at the top.
    """
    place = "." if listing is None else listing.configured_at
    steps = _configure_steps(tree / place)
    scripts = [" && ".join((*steps, _last_step(listing)))] if steps else []
    if (tree / place / "CMakeLists.txt").is_file():
        scripts.append(_CMAKE)
    return [_command_way("sh", "-c", script, directory=place) for script in scripts]


def _last_step(listing: Candidate | None) -> str:
    if listing is None:
        return "make"
    there = str(Path(listing.directory).relative_to(listing.configured_at))
    return _KBUILD.format(shlex.quote(there))


def _configure_steps(tree: Path) -> list[str]:
    steps = []
    if not (tree / "configure").is_file():
        steps = [f"./{name}" for name in _MAKES_CONFIGURE if (tree / name).is_file()][:1]
        if not steps and any((tree / name).is_file() for name in ("configure.ac", "configure.in")):
            steps = ["autoreconf -fi"]
        if not steps:
            return []
    options = "".join(f" --with-{name}" for name in _headers_options(tree))
    return [*steps, f"./configure{options}"]


def _headers_options(tree: Path) -> Iterator[str]:
    """Yield the options of a configure that takes the kernel's headers, with their values."""
    text = source_text(tree / "configure", _CONFIGURE_LIMIT) or source_text(tree / "configure.ac")
    names = dict.fromkeys(found[1] or found[2] for found in _HEADERS_OPTION.finditer(text))
    yield from (f'{name}="$NODESIDE_KERNEL_DIR"' for name in list(names)[:2])
