"""The compiler that kbuild will use here, and whether it matches the kernel's compiler.

A module must be compiled by the compiler family and major version that compiled the kernel: flags,
plugins and struct layout depend on it. The kernel's Makefile only warns.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.bundle_key import BuildSettings
from nodeside.system import process
from nodeside.toolkit_sidecar.descendants import enclosure
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.headers import Headers
from nodeside.values import frozen

_TIMEOUT = 20.0  # seconds for a compiler to print its version
_LONGEST = 500  # characters of a version; a longer text would take long to search
_IN_BRACKETS = re.compile(r"\([^)]*\)")  # the packager's version
_VERSION = re.compile(r"(?<![\w.-])(\d+)\.\d+")
_CC_ARGUMENT = re.compile(r"^CC=(?P<name>.+)$")
# Debian's headers pin the compiler in a make fragment, which only make can evaluate.
_SHOW_CC = "include .kernelvariables\nshow:\n\t@echo $(CC)\n"


@frozen
class Compiler:
    """A compiler. `text` is the first line of `--version`.

    `family` is gcc or clang. `major` is 0 if unknown.
    """

    name: str
    text: str
    family: str
    major: int


def kernels_compiler(headers: Headers) -> Compiler:
    """Return the compiler that compiled the kernel, as recorded in its configuration."""
    config = headers.config
    text = config.get("CONFIG_CC_VERSION_TEXT", "")
    clang = config.get("CONFIG_CC_IS_CLANG") == "y"
    number = config.get("CONFIG_CLANG_VERSION" if clang else "CONFIG_GCC_VERSION", "0")
    major = int(number) // 10000 if number.isdecimal() else 0  # 120200 is 12.2.0
    return Compiler(text.split(" ")[0], text, "clang" if clang else "gcc", major)


def chosen_by_driver(settings: BuildSettings) -> str:
    """Return the compiler that driver.yaml requests, "" if it leaves the choice to the kernel."""
    for word in settings.make_arguments:
        match = _CC_ARGUMENT.match(word)
        if match:
            return match["name"]
    return settings.environment.get("CC", "")


def kbuilds_choice(headers: Headers) -> str:
    """Return kbuild's default compiler: the one that the headers pin, or gcc or clang."""
    if (headers.directory / ".kernelvariables").is_file():
        done = process.run(
            ["make", "-s", "-f", "-", "show"],
            timeout=_TIMEOUT,
            cwd=headers.directory,
            input=_SHOW_CC.encode(),
            check=False,
        )
        if done.exit_code == 0 and done.output.strip():
            return done.output.strip()
    return "clang" if kernels_compiler(headers).family == "clang" else "gcc"


def ask_compiler(name: str) -> Compiler:
    """Return the compiler called `name`, which may be several words (`ccache gcc-12`).

    driver.yaml may name any program, so it is enclosed like a step of the build.
    """
    words = shlex.split(name)
    done = process.run([*words, "--version"], timeout=_TIMEOUT, wrapper=enclosure())
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
    """Return the build's compiler and a note (or ""). Raises BuildFailed: wrong-compiler."""
    kernel = kernels_compiler(headers)
    requested = chosen_by_driver(settings)
    name = requested or kbuilds_choice(headers)
    try:
        here = ask_compiler(name)
    except (process.ToolMissing, process.ToolError, process.ToolTimeout, ValueError) as exc:
        raise BuildFailed(
            FailureKind.WRONG_COMPILER,
            f"toolkit has no working {name}, which builds modules for {headers.release}: {exc}",
            hint=f"the toolkit image needs {name}; it has {_installed_compilers(root)}",
        ) from exc
    problem = compare_compilers(kernel, here)
    if problem and not requested:
        raise BuildFailed(
            FailureKind.WRONG_COMPILER,
            f"{problem} ({here.text}; kernel: {kernel.text})",
            hint="use the toolkit image of the node's kernel, or choose an installed compiler "
            f"({_installed_compilers(root)}) with build.makeArguments: [CC=...] in driver.yaml",
        )
    return here, f"{problem}, but driver.yaml asks for CC={requested}" if problem else ""


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
