"""Hints for the errors of a build, for readers who did not write the driver.

They cover packages of the toolkit image, memory, the clock, and other versions of the driver. Each
is matched against the error line that `firsterror` has chosen.
"""

from __future__ import annotations

import re

# Messages of make itself, of env, and of shells: dash, bash, busybox. Two jobs may share a line.
MISSING = re.compile(
    r"^make(\[\d+\])?: (?P<make>[^\s:]+): (No such file or directory|Permission denied)$"
    r"|^(/usr/bin/)?env: '?(?P<env>[^\s:']+)'?: No such file or directory$"
    r"|(^|: )(?P<shell>[^\s:]+): ((command )?not found|Permission denied)$"
    r"|: (?P<interpreter>[^\s:]+): bad interpreter: "
)

NO_SPACE = re.compile(
    r"No space left on device|Disk quota exceeded|^fixdep: not all data was written to the output"
)
# Packages that are not named after their tool: Debian, Fedora.
_PACKAGES = {
    "7z": ("p7zip-full", "p7zip-plugins"),
    "c++": ("g++", "gcc-c++"),
    "clang++": ("clang", "clang"),
    "depmod": ("kmod", "kmod"),
    "g++": ("g++", "gcc-c++"),
    "ld": ("binutils", "binutils"),
    "ld.lld": ("lld", "lld"),
    "lsb_release": ("lsb-release", "redhat-lsb-core"),
    "modinfo": ("kmod", "kmod"),
    "msgfmt": ("gettext", "gettext"),
    "objcopy": ("binutils", "binutils"),
    "pahole": ("pahole", "dwarves"),
    "pkg-config": ("pkg-config", "pkgconf-pkg-config"),
    "pip3": ("python3-pip", "python3-pip"),
    "protoc": ("protobuf-compiler", "protobuf-compiler"),
    "python": ("python-is-python3", "python-unversioned-command"),
    "readelf": ("binutils", "binutils"),
    "strip": ("binutils", "binutils"),
    "xxd": ("xxd", "vim-common"),
    "xz": ("xz-utils", "xz"),
}
_KERNELS = re.compile(
    r"(linux|asm|asm-generic|uapi|net|drm|media|sound|scsi|rdma|crypto|acpi|video|trace|generated)/"
)
_MEMORY = "a process was killed, most likely for lack of memory: raise the toolkit's memory limit"
_NO_MEMORY = "the build ran out of memory: raise the toolkit's memory limit"
_TAKE_ANOTHER = "a version of the driver for this kernel, or a patch (build.patches in driver.yaml)"

# A pattern for the error line, and its hint; \\g<...> inserts a group of the match. Patterns are
# compiled when a build fails, since every worker imports this.
_WORDS: tuple[tuple[str, str], ...] = (
    (NO_SPACE.pattern, "free some space: df -h"),
    (
        r"(\] |error: |command: |signal \d+ \[|: +\d+ )(Killed|Terminated)\b",
        _MEMORY,
    ),
    (r"memory exhausted|out of memory|annot allocate memory|bad_alloc", _NO_MEMORY),
    (
        rf"fatal error: (?P<header>{_KERNELS.pattern}\S+): No such file",
        f"this kernel has no <\\g<header>>: take {_TAKE_ANOTHER}",
    ),
    (
        r"fatal error: (?P<header>\S+): No such file",
        (
            "neither source nor toolkit has \\g<header>: if it belongs to the driver, add it to "
            "the source (git submodules, source.exclude); if it belongs to a library, install its "
            "development package in the toolkit image"
        ),
    ),
    (
        r'^ERROR: (modpost: )?"(?P<symbol>[^"]+)" \[.*\] undefined',
        (
            "neither this kernel nor a module of this build exports \\g<symbol>: if another driver "
            "does, name it in spec.after (elsewhere than on a node also with --symbols-of); else "
            f"take {_TAKE_ANOTHER}"
        ),
    ),
    (
        r"modpost: GPL-incompatible module \S+ uses GPL-only symbol",
        "the kernel exports this symbol to GPL modules only (MODULE_LICENSE)",
    ),
    (
        r"uses symbol \S+ from namespace (?P<name>[^\s,]+)",
        (
            "the driver must declare MODULE_IMPORT_NS(\\g<name>): take a version for this kernel, "
            "or patch it (build.patches in driver.yaml)"
        ),
    ),
    (
        r"undefined reference to `(?P<symbol>[^']+)'",
        (
            "no linked object defines \\g<symbol>: a file is missing in the source, or a library "
            "in the link command"
        ),
    ),
    (
        r"multiple definition of `(?P<symbol>[^']+)'",
        "two files of the driver define \\g<symbol>: patch it (build.patches in driver.yaml)",
    ),
    (
        r"\bld(\.\w+)?: cannot find -l(?P<name>[^\s:]+)",
        "the toolkit has no library \\g<name>: install its development package in the image",
    ),
    (
        (
            r"error: (implicit declaration of|unknown type name|conflicting types for"
            r"|too (few|many) arguments to"
            r"|.*(no member named|undeclared|incompatible[- ]pointer[- ]type))"
        ),
        (
            "the source does not fit this kernel, or has a mistake: correct it, or take "
            f"{_TAKE_ANOTHER}"
        ),
    ),
    (
        r"\[-Werror=(?P<name>[\w-]+)",
        (
            "a warning that counts as an error: patch the driver (build.patches), or, if it is "
            "known to be harmless, set build.makeArguments: [KCFLAGS=-Wno-error=\\g<name>]"
        ),
    ),
    (
        r"newly created file is older than distributed files",
        "the source is newer than the clock of this machine: set the clock",
    ),
    (
        r"error: unrecognized command[- ]line option",
        (
            "this compiler does not know the option: it is older than the one that the kernel or "
            "the driver was made with; use the toolkit image of the node's kernel"
        ),
    ),
    (
        r"\*\*\* (?P<path>/lib/modules/\S+): No such file or directory",
        (
            "the toolkit has no \\g<path>: install the distribution's header package in its image, "
            "or link the headers there"
        ),
    ),
    (
        r"\*\*\* No rule to make target '(?P<path>[^']+)'",
        (
            "\\g<path> is not in the source, and no rule makes it: add it to the source (git "
            "submodules, source.exclude)"
        ),
    ),
)


def find_remedy(line: str) -> str:
    """Return what to do about an error line; "" if nothing is known."""
    if missing := MISSING.search(line):
        name = next(group for key, group in missing.groupdict().items() if group)
        return _install_hint(name, denied=line.endswith("Permission denied"))
    for pattern, words in _WORDS:
        if match := re.search(pattern, line):
            return match.expand(words)
    return ""


def _install_hint(name: str, *, denied: bool) -> str:
    """Return how to get a program that could not be run."""
    if denied:
        return f"{name} is not executable: chmod +x in the source, and keep the mode in the image"
    if "/" in name:
        return (
            f"{name} is not in the source, or the toolkit lacks the interpreter in its first line"
        )
    debian, fedora = _PACKAGES.get(name, (name, name))
    packages = debian if debian == fedora else f"{debian} on Debian, {fedora} on Fedora"
    return f"install {name} in the toolkit image (package {packages})"
