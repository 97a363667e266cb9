"""The compiler of a build: the one that compiled the kernel, or the nearest that is installed.

A module must be compiled by the compiler family and major version that compiled the kernel: flags,
plugins and struct layout depend on it. The kernel's Makefile only warns. Without a `CC=` it takes
`gcc`, which on Ubuntu is often older than the compiler of its HWE kernels, which is installed
beside it.
"""

from __future__ import annotations

import re
import shlex
import shutil
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
# How distributions call a compiler at the beginning of CONFIG_CC_VERSION_TEXT, maybe for a target.
_PROGRAM = re.compile(r"(?:[a-z0-9_]+-)*(?:gcc|clang)(?:-[0-9]+)?")
_CC_ARGUMENT = re.compile(r"^CC=(?P<name>.+)$")
# Debian's headers pin the compiler in a make fragment, which only make can evaluate.
_SHOW_CC = "include .kernelvariables\nshow:\n\t@echo $(CC)\n"


@frozen
class Compiler:
    """A compiler. `text` is the first line of `--version`.

    `family` is gcc or clang. `major` is 0 if unknown. `is_default` says that kbuild takes it by
    itself, without `CC=`.
    """

    name: str
    text: str
    family: str
    major: int
    is_default: bool = True

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments with which make uses it, in kbuild or in a Makefile above."""
        return () if self.is_default else (f"CC={self.name}",)


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


def list_candidates(headers: Headers) -> tuple[str, ...]:
    """Return the names under which the kernel's compiler may be installed.

    The first is the one that kbuild takes by itself: what Debian's headers pin, or gcc or clang.
    """
    if pinned := _read_pinned_compiler(headers):
        return (pinned,)
    kernel = kernels_compiler(headers)
    names = [kernel.name] if _PROGRAM.fullmatch(kernel.name) else []
    names += [f"{kernel.family}-{kernel.major}"] if kernel.major else []
    return tuple(dict.fromkeys((kernel.family, *names)))


def _read_pinned_compiler(headers: Headers) -> str:
    if not (headers.directory / ".kernelvariables").is_file():
        return ""
    done = process.run(
        ["make", "-s", "-f", "-", "show"],
        timeout=_TIMEOUT,
        cwd=headers.directory,
        input=_SHOW_CC.encode(),
        check=False,
    )
    return done.output.strip() if done.exit_code == 0 else ""


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
    if requested := chosen_by_driver(settings):
        here = _ask_or_refuse(requested, headers, root)
        problem = compare_compilers(kernel, here)
        return here, f"{problem}, but driver.yaml asks for CC={requested}" if problem else ""
    default, *others = list_candidates(headers)
    refusal: BuildFailed | None = None
    for name in (default, *filter(_is_installed, others)):
        try:
            here = _ask_or_refuse(name, headers, root)
            _require_same(kernel, here, root)
        except BuildFailed as failed:
            refusal = refusal or failed  # the first is of kbuild's default, which people know
            continue
        if name == default:
            return here, ""
        return Compiler(here.name, here.text, here.family, here.major, is_default=False), ""
    assert refusal is not None
    raise refusal


def _require_same(kernel: Compiler, here: Compiler, root: Path) -> None:
    if problem := compare_compilers(kernel, here):
        raise BuildFailed(
            FailureKind.WRONG_COMPILER,
            f"{problem} ({here.text}; kernel: {kernel.text})",
            hint=f"install {_package_in_words(kernel)} in the toolkit image, use the toolkit image "
            f"of the node's kernel, or choose an installed compiler ({_installed_compilers(root)}) "
            "with build.makeArguments: [CC=...] in driver.yaml",
        )


def _is_installed(name: str) -> bool:
    return shutil.which(name, path=process.make_environment()["PATH"]) is not None


def _ask_or_refuse(name: str, headers: Headers, root: Path) -> Compiler:
    try:
        return ask_compiler(name)
    except (process.ToolMissing, process.ToolError, process.ToolTimeout, ValueError) as exc:
        raise BuildFailed(
            FailureKind.WRONG_COMPILER,
            f"toolkit has no working {name}, which builds modules for {headers.release}: {exc}",
            hint=f"the toolkit image needs {name}; it has {_installed_compilers(root)}",
        ) from exc


def _package_in_words(kernel: Compiler) -> str:
    if not kernel.major:
        return kernel.family
    numbered = f"{kernel.family}-{kernel.major}"
    return f"{numbered} (Debian, Ubuntu) or {kernel.family} {kernel.major}"


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
