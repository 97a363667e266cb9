"""Hints for the errors of a build, for readers who did not write the driver.

They cover packages of the toolkit image, memory, the clock, other versions of the driver, and what
is not where the driver looks for it. Each is matched against the error line that `firsterror` has
chosen.
"""

from __future__ import annotations

import posixpath
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
    "aclocal": ("automake", "automake"),
    "autoreconf": ("autoconf", "autoconf"),
    "libtoolize": ("libtool", "libtool"),
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
# Programs that kbuild runs, and that come compiled with the headers.
_OF_KBUILD = (
    r"(scripts/(basic/fixdep|mod/modpost|genksyms/genksyms|dtc/dtc|asn1_compiler|bin2c|conmakehash"
    r"|extract-cert|insert-sys-cert|kallsyms|recordmcount|sign-file|sorttable|unifdef)"
    r"|tools/(objtool/objtool|bpf/resolve_btfids/resolve_btfids))"
)
_KERNELS = re.compile(
    r"(linux|asm|asm-generic|uapi|net|drm|media|sound|scsi|rdma|crypto|acpi|video|trace|generated)/"
)
_MEMORY = "a process was killed, most likely for lack of memory: raise the toolkit's memory limit"
_NO_MEMORY = "the build ran out of memory: raise the toolkit's memory limit"
_TAKE_ANOTHER = "a version of the driver for this kernel, or a patch (build.patches in driver.yaml)"
_DOES_NOT_FIT = (
    f"the source does not fit this kernel, or has a mistake: correct it, or take {_TAKE_ANOTHER}"
)
WITHOUT_GIT = (
    "the source that is built has no .git: give the version by build.environment or "
    "build.makeArguments, or write the file with it before the image is made"
)
_OTHER_HEADERS = (
    "`make -C` went to a directory without kernel headers: give the Makefile's variable for it the "
    "right one, such as build.makeArguments: [KDIR=/lib/modules/RELEASE/build]; a build.command "
    "has it in $NODESIDE_KERNEL_DIR"
)
_INSTALLS = (
    "a build may only write in its own directory, and nothing is installed: build without this "
    "step, since the modules are taken from where make leaves them or from $NODESIDE_OUTPUT"
)

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
        r"/define_trace\.h:\d+:\d+: fatal error: (?P<header>\S+): No such file",
        (
            "the tracepoints of the driver are looked for beside its source: add -I$(src) to "
            "ccflags-y in its Makefile (build.patches in driver.yaml)"
        ),
    ),
    (
        r"(^| )(/usr/src|(/usr)?/lib/modules)/\S*include/\S+ fatal error: (?P<header>\S+): No such",
        (
            "a header of the kernel needs \\g<header>, which is not there: install all packages of "
            "the distribution's headers, or add the -I that the driver's Makefile has lost"
        ),
    ),
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
            r"|too (few|many) arguments to|assignment of read-only|redefinition of"
            r"|static declaration of|call to (undeclared|\W__compiletime_assert)"
            r"|.*(no member named|undeclared|incompatible[- ]pointer[- ]type|incompatible type"
            r"|has incomplete type|dereferencing pointer to incomplete|redeclared|\" redefined))"
        ),
        _DOES_NOT_FIT,
    ),
    (
        r"error: #error",
        (
            "the driver itself says why it cannot be built: take another version, or set what it "
            "asks for (build.makeArguments, build.environment)"
        ),
    ),
    (
        r"modpost: missing MODULE_LICENSE",
        "each module must declare its license: patch the driver (build.patches in driver.yaml)",
    ),
    (
        r"modpost: parse error in symbol dump file",
        (
            "a Module.symvers of another kernel is in the source: leave it out (source.exclude: "
            "[Module.symvers])"
        ),
    ),
    (
        r"incompatible gcc/plugin versions",
        "the kernel's gcc plugins are for another compiler: use the toolkit image of its kernel",
    ),
    (
        r"[Cc]onfiguration is invalid|include/(generated|config)/auto(conf)?\.(h|conf) .*missing",
        "the headers are not prepared: install the distribution's packages, not a bare source tree",
    ),
    (
        r"(scripts|tools)/\S+: (\d+: )?(\S+: )?[Ss]yntax error",
        (
            "a program of the headers is for another architecture or another C library: use a "
            "toolkit image of the node's distribution and architecture"
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
        rf"\*\*\* No rule to make target '(\S*/)?(?P<path>{_OF_KBUILD})'",
        (
            "the headers lack \\g<path>, a program of kbuild: make what it makes where a whole "
            "kernel tree is, and add that to the source"
        ),
    ),
    (r"\*\*\* (No rule to make target 'modules'|No targets specified)", _OTHER_HEADERS),
    (
        r"\*\*\* No targets",
        "the Makefile makes nothing by itself: it is one for kbuild (build.kind: kbuild)",
    ),
    (
        r"\*\*\* No rule to make target '(?P<path>[^']+)'",
        (
            "\\g<path> is not in the source, and no rule makes it: add it to the source (git "
            "submodules, source.exclude)"
        ),
    ),
    (
        r"\.tmp_\d+.*(Read-only file system|Permission denied)",
        (
            "kbuild was called without the driver's directory: M= is empty, so it writes to the "
            "headers; give the variable behind it, or use build.kind: kbuild"
        ),
    ),
    (
        (
            r"Could not resolve host|Temporary failure in name resolution|unable to resolve host"
            r"|\b(not reachable|cannot be reached|[Nn]etwork is unreachable)\b"
            r"|[Ss]ocket\w*\W.*Operation not permitted"
            r"|PermissionError: \[Errno 1\] Operation not permitted(?!: )"
        ),
        "a build has no network and opens no socket: put what it fetches into the source before",
    ),
    (r"Read-only file system", _INSTALLS),
    (r"(cannot (create|remove|touch)|depmod: ERROR: openat).*Permission denied", _INSTALLS),
    (
        r"\bgit submodule",
        (
            "the source lacks what its git submodules have: fetch them into it before (git clone "
            "--recurse-submodules)"
        ),
    ),
    (
        (
            r"not a git repository|\.git (does not exist|is missing|not found)"
            r"|\bgit[ -](checkout|clone|history|repo(sitory)?|(work(ing)? ?)?tree)\b"
            r"|\b(in|from) an? (checkout|clone)\b"
        ),
        WITHOUT_GIT,
    ),
)


def find_remedy(line: str) -> str:
    """Return what to do about an error line; "" if nothing is known."""
    if missing := MISSING.search(line):
        name = next(group for key, group in missing.groupdict().items() if group)
        return _install_hint(name, denied=line.endswith("Permission denied"))
    if path := _path_outside(line):
        return _outside_hint(path)
    for pattern, words in _WORDS:
        if match := re.search(pattern, line):
            return match.expand(words)
    return ""


# A path that a Makefile or a file of the source names, relative to that file's directory.
_NAMED = (
    re.compile(r"^(?P<file>[^/\s:][^\s:]*):\d+:\d+: fatal error: (?P<path>\.\./\S+): No such file"),
    re.compile(r"\*\*\* No rule to make target '(?P<path>(\.\./|/\.\./)[^']+)'"),
    re.compile(r"\*\*\* No rule to make target '(?P<path>/[\w.-]+)'"),
    re.compile(r"^\S+:\d+: (\*\*\* )?(?P<path>/?\.\./\S+): No such file or directory"),
)


def _path_outside(line: str) -> str:
    """Return the path in an error line that leads out of the source; "" if there is none."""
    for pattern in _NAMED:
        if match := pattern.search(line):
            file = match.groupdict().get("file") or ""
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file), match["path"]))
            return match["path"] if path.startswith(("..", "/")) else ""
    return ""


def _outside_hint(path: str) -> str:
    if path.startswith("/"):
        return (
            f"{path} begins with a variable that is empty: a Makefile above sets it, so build from "
            "there, or set it (build.makeArguments, build.environment)"
        )
    return (
        f"{path} is outside the source directory: name a directory above as the source, and this "
        "one as build.directory (nodeside init ABOVE --directory DIR)"
    )


def _install_hint(name: str, *, denied: bool) -> str:
    """Return how to get a program that could not be run."""
    if re.search(rf"(^|/){_OF_KBUILD}$", name):
        return (
            f"the headers lack {name}, a program of kbuild: install all packages of the "
            "distribution's headers (Debian: linux-kbuild-*, Fedora: kernel-devel)"
        )
    if denied:
        return f"{name} is not executable: chmod +x in the source, and keep the mode in the image"
    if "/" in name:
        return (
            f"{name} is not in the source, or the toolkit lacks the interpreter in its first line"
        )
    debian, fedora = _PACKAGES.get(name, (name, name))
    packages = debian if debian == fedora else f"{debian} on Debian, {fedora} on Fedora"
    hint = f"install {name} in the toolkit image (package {packages})"
    return f"{hint}; {WITHOUT_GIT}" if name == "git" else hint
