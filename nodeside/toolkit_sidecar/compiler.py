"""The compiler that kbuild will use here, and whether it matches the kernel's compiler.

A module must be compiled by the compiler family and major version that compiled the kernel: flags,
plugins and struct layout depend on it. The kernel's Makefile only warns.
"""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.bundle_key import BuildSettings
from nodeside.system import process
from nodeside.toolkit_sidecar.descendants import make_enclosure
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.headers import Headers
from nodeside.values import frozen

_TIMEOUT = 20.0  # seconds for a compiler to print its version
_LONGEST = 500  # characters of a version; a longer text would take long to search
_NUMBER = re.compile(r"^[0-9]{1,9}$")
_IN_BRACKETS = re.compile(r"\([^)]*\)")  # the packager's version
_VERSION = re.compile(r"(?<![\w.-])(\d+)\.\d+")
# A compiler's program, as in `x86_64-linux-gnu-gcc-12 (Ubuntu …`; `Debian clang …` names none.
_PROGRAM = re.compile(r"^(?:\w[\w.+]*-)*(?:gcc|clang)(?:-\d+(?:\.\d+)*)?$", re.ASCII)
_CC_ARGUMENT = re.compile(r"^CC=(?P<name>.+)$")
_UNUSABLE = (process.ToolMissing, process.ToolError, process.ToolTimeout, ValueError)
# Debian's headers pin the compiler in a make fragment, which only make can evaluate.
_SHOW_CC = "include .kernelvariables\nshow:\n\t@echo $(CC)\n"


@frozen
class Compiler:
    """A compiler. `text` is the first line of `--version`.

    `family` is gcc or clang. `major` is 0 if unknown. `argument` is what make must be given for
    kbuild to use it (`CC=gcc-12`), "" if kbuild does so by itself or driver.yaml gives it.
    """

    name: str
    text: str
    family: str
    major: int
    argument: str = ""


def read_kernel_compiler(headers: Headers) -> Compiler:
    """Return the compiler that compiled the kernel, as recorded in its configuration."""
    config = headers.config
    text = config.get("CONFIG_CC_VERSION_TEXT", "")
    clang = config.get("CONFIG_CC_IS_CLANG") == "y" or "clang version" in text
    number = config.get("CONFIG_CLANG_VERSION" if clang else "CONFIG_GCC_VERSION", "0")
    major = int(number) // 10000 if _NUMBER.match(number) else 0  # 120200 is 12.2.0
    family = "clang" if clang else "gcc"
    return Compiler(text.split(" ")[0], text, family, major or major_version(text[:_LONGEST]))


def candidate_names(kernel: Compiler) -> tuple[str, ...]:
    """Return the names that the kernel's compiler may have here, the best first.

    Ubuntu's kernels name the very program, x86_64-linux-gnu-gcc-12; others say gcc, which may be
    another version by now, or name no program at all.
    """
    names = [kernel.name] if _PROGRAM.match(kernel.name) else []
    if kernel.major:
        names.append(f"{kernel.family}-{kernel.major}")
    return tuple(dict.fromkeys(names))


def find_requested_compiler(settings: BuildSettings) -> str:
    """Return the compiler that driver.yaml requests, "" if it leaves the choice to the kernel."""
    for word in settings.make_arguments:
        match = _CC_ARGUMENT.match(word)
        if match:
            return match["name"]
    return settings.environment.get("CC", "")


def pinned_compiler(headers: Headers) -> str:
    """Return the compiler that the headers pin, whatever CC is given to make; "" if they do not."""
    if (headers.directory / ".kernelvariables").is_file():
        done = process.run(
            ["make", "-s", "-f", "-", "show"],
            timeout=_TIMEOUT,
            cwd=headers.directory,
            input=_SHOW_CC.encode(),
            check=False,
        )
        if done.exit_code == 0:
            return done.output.strip()
    return ""


def ask_compiler(name: str) -> Compiler:
    """Return the compiler called `name`, which may be several words (`ccache gcc-12`).

    driver.yaml may name any program, so it is enclosed like a step of the build.
    """
    words = shlex.split(name)
    done = process.run([*words, "--version"], timeout=_TIMEOUT, wrapper=make_enclosure())
    text = done.output.partition("\n")[0][:_LONGEST]
    family = "clang" if "clang" in text.lower() else "gcc"
    return Compiler(name, text, family, major_version(text))


def major_version(text: str) -> int:
    """Return the major version in the first line of `--version`, 0 if there is none.

    Examples: `gcc-12 (Debian 12.2.0-14) 12.2.0`, `Debian clang version 14.0.6`.
    """
    match = _VERSION.search(_IN_BRACKETS.sub(" ", text))
    return int(match[1]) if match else 0


def check_compiler(headers: Headers, settings: BuildSettings, root: Path) -> tuple[Compiler, str]:
    """Return the build's compiler and a note (or ""). Raises BuildFailed: wrong-compiler.

    It is the one that driver.yaml requests, that the headers pin, that kbuild takes by itself, or
    that the kernel names: the first of them that fits the kernel.
    """
    kernel = read_kernel_compiler(headers)
    requested = find_requested_compiler(settings)
    pinned = "" if requested else pinned_compiler(headers)
    name = requested or pinned or kernel.family
    here: Compiler | None = None
    problem, missing = "", ""
    try:
        here = ask_compiler(name)
        problem = compare_compilers(kernel, here)
    except _UNUSABLE as exc:
        missing = (
            f"toolkit has no working {name}, which builds modules for {headers.release}: {exc}"
        )
    if here and (requested or not problem):
        return here, f"{problem}, but driver.yaml asks for CC={requested}" if problem else ""
    if not requested and not pinned and (other := _find_other(kernel)):
        return other, ""
    installed = _installed_compilers(root)
    if here is None:
        raise BuildFailed(
            FailureKind.WRONG_COMPILER,
            missing,
            hint=f"the toolkit image needs {name}; it has {installed}",
        )
    raise BuildFailed(
        FailureKind.WRONG_COMPILER,
        f"{problem} ({here.text}; kernel: {kernel.text})",
        hint=f"use the toolkit image of the node's kernel, install {_package_names(kernel)} in "
        f"this one, or choose an installed compiler ({installed}) with build.makeArguments: "
        "[CC=...] in driver.yaml",
    )


def _find_other(kernel: Compiler) -> Compiler | None:
    """Return a compiler that fits the kernel and is not kbuild's default; None if none does."""
    for name in candidate_names(kernel):
        with suppress(*_UNUSABLE):
            here = ask_compiler(name)
            if not compare_compilers(kernel, here):
                return replace(here, argument=f"CC={name}")
    return None


def _package_names(kernel: Compiler) -> str:
    """Return what the packages of the kernel's compiler are called, for a hint."""
    if not kernel.major:
        return kernel.family
    dashed, plain = f"{kernel.family}-{kernel.major}", f"{kernel.family}{kernel.major}"
    return f"{dashed} (Debian, Ubuntu) or {plain} (SUSE, Alpine, Arch)"


def compare_compilers(kernel: Compiler, here: Compiler) -> str:
    """Return how `here` differs from the kernel's compiler, "" if it matches or is unknown."""
    if kernel.family != here.family:
        return f"{kernel.family} compiled the kernel, {here.name} is {here.family}"
    if kernel.major and here.major and kernel.major != here.major:
        return (
            f"{kernel.family} {kernel.major} compiled the kernel, "
            f"{here.name} here is version {here.major}"
        )
    return ""


def _installed_compilers(root: Path) -> str:
    """Return the compilers that are installed, for a hint."""
    names = {
        path.name
        for pattern in ("gcc", "gcc-[0-9]*", "clang", "clang-[0-9]*")
        for path in (root / "usr/bin").glob(pattern)
    }
    return ", ".join(sorted(names)) or "no compiler"
