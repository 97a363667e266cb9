"""What the source and the kernel's headers tell about an error in a build's output.

Three kinds: a header that a Makefile of the source would make, one that is in the source and not
where the compiler looks, and a name of the kernel that is only declared with an option that is off.
Both trees may be a vendor's: reading them is limited in files, bytes and time.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from nodeside.protocol.bundle_key import BuildKind
from nodeside.system.files import UntrustedFile, open_untrusted
from nodeside.toolkit_sidecar.headers import Headers
from nodeside.toolkit_sidecar.recipe import Workplace

_MISSING_HEADER = re.compile(r"fatal error: (?P<header>[\w./+-]+): No such file")
_MISSING_NAME = re.compile(
    r"error: (implicit declaration of function|unknown type name|call to undeclared function"
    r"|.{0,200}has no member named) \W(?P<name>\w{3,100})\W"
    r"|error: \W(?P<undeclared>\w{3,100})\W undeclared"
)
_FILES = 30_000  # entries of a tree; the headers of a kernel have about 12,000
_BYTES = 1 << 20  # of a file
_SECONDS = 5.0
_SHOWN = 4  # options in an advice
_EXTRA_CFLAGS_UNTIL = (6, 15)  # the first kernel whose kbuild ignores them

_DIRECTIVE = re.compile(r"^\s*#\s*(?P<word>ifdef|ifndef|if|elif|else|endif)\b(?P<condition>.*)")
_OPTION = re.compile(r"\bCONFIG_\w{1,100}\b")
_NEGATED = re.compile(r"!\s*(defined|IS_\w+|CONFIG_)")


class _TooMuch(Exception):
    """A tree that is larger than what is read of one."""


def advise_on_error(line: str, place: Workplace, source: Path) -> str:
    """Return what to do about an error line in this source with these headers; "" if unknown."""
    deadline = time.monotonic() + _SECONDS
    with suppress(_TooMuch):
        if match := _MISSING_HEADER.search(line):
            return _advise_header(match["header"], place, source, deadline)
        if match := _MISSING_NAME.search(line):
            name = match["name"] or match["undeclared"]
            return _advise_name(name, place.headers, deadline)
    return ""


def _advise_header(header: str, place: Workplace, source: Path, deadline: float) -> str:
    """Explain a header that the compiler did not find."""
    if ".." in header:
        return ""
    name = Path(header).name
    has_extra_flags = False
    found: list[Path] = []
    for path in _walk_files(source, deadline):
        if path.name == name and path.as_posix().endswith(f"/{header}"):
            found.append(path.relative_to(source))
        if path.name in ("Makefile", "makefile", "GNUmakefile", "Kbuild") or path.suffix == ".mk":
            text = _read_text(path)
            if any(_is_rule_for(name, line) for line in text.splitlines()):
                return _advise_rule(header, path.relative_to(source), place)
            has_extra_flags = has_extra_flags or "EXTRA_CFLAGS" in text
    if not found:
        return ""
    where = found[0].as_posix().removesuffix(header).rstrip("/") or "."
    if has_extra_flags and _kernel_version(place.headers.release) >= _EXTRA_CFLAGS_UNTIL:
        return (
            f"{found[0]} is in the source, but kbuild ignores EXTRA_CFLAGS since Linux 6.15: write "
            "ccflags-y in its Makefile (build.patches in driver.yaml)"
        )
    return (
        f"{found[0]} is in the source, but the compiler does not look there: add -I$(src)/{where} "
        "to ccflags-y, or build in another directory (build.directory)"
    )


def _is_rule_for(name: str, line: str) -> bool:
    """Return whether a line of a Makefile begins a rule that makes a file of this name."""
    targets, colon, rest = line.partition(":")
    is_rule = colon and not rest.startswith("=") and "=" not in targets
    return bool(is_rule) and line[0] not in "\t#" and name in re.split(r"[\s/]", targets)


def _advise_rule(header: str, makefile: Path, place: Workplace) -> str:
    """Explain a header that a rule of the source makes."""
    if place.request.settings.kind is BuildKind.COMMAND:
        return f"a rule in {makefile} makes {header}, and it did not run: make that target first"
    return (
        f"a rule in {makefile} makes {header}, which kbuild by itself does not follow: set "
        "build.kind: command and build.command: [make] in driver.yaml"
    )


def _advise_name(name: str, headers: Headers, deadline: float) -> str:
    """Explain that a name is declared only with options that are off here; "" for other names."""
    off: tuple[str, ...] = ()
    where = ""
    for base in _include_directories(headers.directory):
        for path in _walk_files(base, deadline):
            text = _read_text(path) if path.suffix == ".h" else ""
            if name not in text:
                continue
            lacking = _lacking_options(text, name, headers)
            if lacking is not None:
                if not lacking:
                    return ""
                off, where = off or lacking, where or path.relative_to(base).as_posix()
    if not off:
        return ""
    shown = (*off[:_SHOWN], "others") if len(off) > _SHOWN else off
    return (
        f"the kernel declares {name} only with {' and '.join(shown)} ({where}), which is off in "
        f"{headers.release}: the driver needs a kernel that has it"
    )


def _lacking_options(text: str, name: str, headers: Headers) -> tuple[str, ...] | None:
    """Return the options that are off around the first use of a name in a header.

    () if there is a use that needs none of them; None if there is no use. A line costs the same
    however many conditions it stands in: the header may be a vendor's.
    """
    word = re.compile(rf"\b{re.escape(name)}\b")
    stack: list[tuple[str, ...]] = []
    closed = 0  # conditions in the stack that do not hold
    found: tuple[str, ...] | None = None
    for line in text.splitlines():
        if directive := _DIRECTIVE.match(line):
            if directive["word"] in ("elif", "else", "endif") and stack:
                closed -= bool(stack.pop())
            if directive["word"] != "endif":
                needed = _needed_options(directive["word"], directive["condition"])
                stack.append(tuple(each for each in needed if not headers.is_enabled(each)))
                closed += bool(stack[-1])
        elif word.search(line) and not line.lstrip().startswith(("*", "/*", "//")):
            if not closed:
                return ()
            found = found or tuple(dict.fromkeys(chain.from_iterable(stack)))
    return found


def _needed_options(word: str, condition: str) -> tuple[str, ...]:
    """Return the options that must be on for a branch of a header.

    Returns () for a branch that one of several options opens, or that an absent option does.
    """
    if word in ("ifndef", "else") or _NEGATED.search(condition):
        return ()
    options = {each.removesuffix("_MODULE") for each in _OPTION.findall(condition)}
    return () if "||" in condition and len(options) > 1 else tuple(sorted(options))


def _include_directories(headers: Path) -> Iterator[Path]:
    """Yield the directories of a kernel's headers. Debian has one that its flavours share."""
    yield headers / "include"
    common = re.search(r"^include (/\S+)/Makefile$", _read_text(headers / "Makefile"), re.MULTILINE)
    if common:
        yield Path(common[1]) / "include"
    elif (headers / "source").is_dir():
        yield headers / "source" / "include"


def _walk_files(base: Path, deadline: float) -> Iterator[Path]:
    """Yield the regular files of a tree, the upper ones first. Raises _TooMuch."""
    waiting, count = deque([base]), 0
    while waiting:
        with suppress(OSError):
            for path in islice(waiting.popleft().iterdir(), _FILES):
                count += 1
                if count >= _FILES or time.monotonic() >= deadline:
                    raise _TooMuch
                if path.is_symlink():
                    continue
                if path.is_dir():
                    waiting.append(path)
                elif path.is_file():
                    yield path


def _read_text(path: Path) -> str:
    """Return the text of a file, "" if it cannot be read or is too long."""
    with suppress(OSError, UntrustedFile), open_untrusted(path, limit=_BYTES) as file:
        return file.read().decode(errors="replace")
    return ""


def _kernel_version(release: str) -> tuple[int, ...]:
    match = re.match(r"(\d{1,4})\.(\d{1,4})", release)
    return (int(match[1]), int(match[2])) if match else ()
