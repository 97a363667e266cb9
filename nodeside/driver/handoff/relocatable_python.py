"""Packs a relocatable Python that needs nothing from the image it runs in.

The toolkit image is not ours, and we cannot rely on a Python in it. So the driver image's own
interpreter is packed with its ELF loader, its libraries and the part of the standard library that a
sidecar can need:

    <to>/
      loader                 -> libs/<the ELF loader>; the same name on every architecture
      bin/python3            the interpreter
      libs/                  the loader and every shared library, found by the loader itself
      lib/python3.X/         the standard library as .pyc without sources, and lib-dynload/
      STAMP                  its version and the digest of the files; written last

`loader --library-path libs bin/python3` starts it. This needs no environment variable that children
would inherit, no file of the image, and no wrapper script.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nodeside.driver.handoff.zipapp import compile_pyc
from nodeside.errors import SystemRefused
from nodeside.system import process
from nodeside.system.files import disk_errors
from nodeside.values import frozen

_TIMEOUT = 60.0  # seconds for the interpreter or the loader to answer
_FACTS = (
    "import json, sys, sysconfig; print(json.dumps([sys._base_executable, sys.platlibdir, "
    "'python%d.%d' % sys.version_info[:2], sysconfig.get_path('stdlib'), "
    "sysconfig.get_config_var('DESTSHARED') or '', sys.version]))"
)
# Extension modules of the standard library to pack, unless built in. Without _hashlib, hashlib
# falls back on the interpreter's own SHA-2, which saves libcrypto: 5 MB on disk, 3 MiB of memory.
_EXTENSIONS = re.compile(
    r"^(_bisect|_blake2|_contextvars|_ctypes|_datetime|_heapq|_json|_md5|_opcode|_pickle"
    r"|_posixsubprocess|_queue|_random|_sha1|_sha2|_sha256|_sha3|_sha512|_socket|_struct|_typing"
    r"|array|binascii|fcntl|grp|math|mmap|resource|select|syslog|termios|unicodedata|zlib)\."
)
# Parts of the standard library that no sidecar can need: tests, GUIs, networking, tools.
_LEFT_OUT = frozenset(
    [
        "__pycache__",
        "asyncio",
        "concurrent",
        "config",
        "ctypes.test",
        "curses",
        "dbm",
        "dist-packages",
        "distutils",
        "email",
        "ensurepip",
        "html",
        "http",
        "idlelib",
        "lib-dynload",
        "lib2to3",
        "mailbox",
        "multiprocessing",
        "pydoc",
        "pydoc_data",
        "site-packages",
        "sqlite3",
        "test",
        "tests",
        "tkinter",
        "tomllib",
        "turtle",
        "turtledemo",
        "unittest",
        "venv",
        "wsgiref",
        "xml",
        "xmlrpc",
        "zoneinfo",
        "doctest",
        "pdb",
        "cgi",
        "smtplib",
        "smtpd",
        "nntplib",
        "imaplib",
        "ftplib",
        "poplib",
        "telnetlib",
        "tarfile",
        "_pydecimal",
        "_pyio",
        "decimal",
        "statistics",
        "optparse",
        "difflib",
        "profile",
        "cProfile",
        "pstats",
        "__phello__",
        "_pyrepl",
        "antigravity",
        "this",
        "aifc",
        "sunau",
        "wave",
        "chunk",
        "colorsys",
        "sndhdr",
        "imghdr",
    ]
)
_ENCODINGS = re.compile(r"^(__init__|aliases|ascii|latin_1|utf_8|idna|raw_unicode_escape|cp437)$")
_LISTED = re.compile(r"^\s*(?P<name>\S+)(?: => (?P<path>\S+))? \(0x[0-9a-f]+\)$")
_PT_INTERP = 3
_NO_DOCSTRINGS = 2  # an idle sidecar is 1 MiB smaller without the standard library's docstrings


@frozen
class Interpreter:
    """The paths and version that an interpreter reports."""

    executable: Path
    library_name: str  # lib, or lib64 on some distributions
    version: str  # python3.11
    stdlib: Path
    extensions: Path
    full_version: str


def pack_python(to: Path, interpreter: Path | None = None, *, link: bool = False) -> None:
    """Pack an interpreter (default: this one) into the directory `to`, which must not exist.

    With `link`, programs and libraries are hard links instead of copies, as in a driver image.
    Raises SystemRefused if it is not an ELF program with a loader, such as a static musl build.
    """
    place = _link_file if link else _copy_executable
    facts = ask_interpreter(interpreter or Path(sys.executable))
    loader = elf_loader(facts.executable)
    with disk_errors(to):
        (to / "bin").mkdir(parents=True)
        (to / "libs").mkdir()
        place(facts.executable, to / "bin/python3")
        target = to / facts.library_name / facts.version
        _pack_library(facts.stdlib, target)
        extensions = list(_pack_extensions(facts, target / "lib-dynload", place))
        place(loader, to / "libs" / loader.name)
        for path in sorted(shared_libraries(loader, [facts.executable, *extensions])):
            if path.name != loader.name:
                place(path, to / "libs" / path.name)
        (to / "loader").symlink_to(f"libs/{loader.name}")
        (to / "STAMP").write_text(f"{facts.full_version}\n{_tree_digest(to)}\n")


def ask_interpreter(interpreter: Path) -> Interpreter:
    """Return the paths of an interpreter; for a virtual environment, those of its base."""
    output = process.run([interpreter, "-I", "-S", "-c", _FACTS], timeout=_TIMEOUT).output
    executable, library_name, version, stdlib, extensions, full_version = json.loads(output)
    return Interpreter(
        Path(os.path.realpath(executable)),
        library_name,
        version,
        Path(stdlib),
        Path(extensions) if extensions else Path(stdlib) / "lib-dynload",
        full_version.replace("\n", " "),
    )


def elf_loader(program: Path) -> Path:
    """Return the PT_INTERP of a 64-bit ELF program, see elf(5). Raises SystemRefused if none."""
    with open(program, "rb") as file:
        header = file.read(64)
        if header[:5] == b"\x7fELF\x02":
            offset, size, count = *struct.unpack_from("<Q", header, 32), 56, header[56]
            for index in range(count):
                file.seek(offset + index * size)
                kind, _, start, _, _, length = struct.unpack("<IIQQQQ", file.read(40))
                if kind == _PT_INTERP:
                    file.seek(start)
                    return Path(os.fsdecode(file.read(length).rstrip(b"\0")))
    raise SystemRefused(
        f"{program} is not a 64-bit ELF program with a loader, so it cannot be packed",
        hint="use a driver image whose Python is linked dynamically, such as Debian's",
    )


def shared_libraries(loader: Path, files: Iterable[Path]) -> set[Path]:
    """Return all direct and indirect libraries of ELF files, as the loader itself finds them."""
    libraries: set[Path] = set()
    for file in files:
        listing = process.run([loader, "--list", file], timeout=_TIMEOUT, check=False).output
        missing = [line.strip() for line in listing.splitlines() if "not found" in line]
        if missing:
            raise SystemRefused(f"{file} needs a missing library: {missing[0]}")
        libraries |= set(parse_listing(listing))
    return libraries


def parse_listing(text: str) -> Iterator[Path]:
    """Yield the paths in the output of `ld.so --list`; the kernel's vdso has none."""
    for line in text.splitlines():
        match = _LISTED.match(line)
        path = (match["path"] or match["name"]) if match else ""
        if path.startswith("/"):
            yield Path(path)


def _pack_library(source: Path, target: Path) -> None:
    """Pack the standard library, compiled, without sources."""
    for directory, names, files in os.walk(source):
        here = Path(directory).relative_to(source)
        names[:] = sorted(name for name in names if _is_wanted(here / name))
        for name in sorted(files):
            path = here / name
            if path.suffix == ".py" and _is_wanted(path.with_suffix("")):
                _compile_source(source / path, target / path.with_suffix(".pyc"))


def _is_wanted(module: Path) -> bool:
    if module.parent.name == "encodings":
        return bool(_ENCODINGS.match(module.name))
    names = {module.name, ".".join(module.parts)}
    return not names & _LEFT_OUT and not module.name.startswith(("config-", "_sysconfigdata"))


def _compile_source(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(
        compile_pyc(source.read_bytes(), f"python/{target.name[:-1]}", optimize=_NO_DOCSTRINGS)
    )


def _pack_extensions(
    interpreter: Interpreter, target: Path, place: Callable[[Path, Path], None]
) -> Iterator[Path]:
    target.mkdir(parents=True)
    for path in sorted(interpreter.extensions.glob("*.so")):
        if _EXTENSIONS.match(path.name):
            place(path, target / path.name)
            yield path


def _copy_executable(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _link_file(source: Path, target: Path) -> None:
    os.link(os.path.realpath(source), target)


def _tree_digest(root: Path) -> str:
    """Return the sha256 over the names and contents of all files below `root`."""
    digest = hashlib.sha256()
    for path in sorted(item for item in root.rglob("*") if item.is_file()):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
