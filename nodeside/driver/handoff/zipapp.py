"""Builds toolkit.pyz: the sidecar and the modules it shares, as one file that Python runs.

The driver's side builds it by reading the package's files; it imports nothing of the sidecar. The
same sources and the same Python give the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

import nodeside

# What the sidecar imports of nodeside, its own package apart. A test compares it with what it does.
SHARED = (
    "__init__",
    "errors",
    "log",
    "protocol/__init__",
    "protocol/build_job",
    "protocol/build_records",
    "protocol/bundle_key",
    "protocol/labels",
    "protocol/module_names",
    "protocol/records",
    "protocol/shared_directory",
    "system/__init__",
    "system/directory_watch",
    "system/files",
    "system/host",
    "system/process",
    "values",
)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = b"import sys\n\nfrom nodeside.toolkit_sidecar.cli import main\n\nsys.exit(main())\n"
_UNCHECKED_HASH = (1).to_bytes(4, "little")  # PEP 552: valid without checking the source
# The later formats of marshal have references, which depend on what else the process has loaded.
_WITHOUT_REFERENCES = 2
# A slice is three objects after this letter: TYPE_SLICE of CPython's Python/marshal.c.
_SLICE = b":"
_MARK = "nodeside: the rest is a slice"
_MARKED = marshal.dumps((_MARK, None, None, None), _WITHOUT_REFERENCES)[: -len("NNN")]


def build_zipapp(packed: Path | None = None) -> bytes:
    """Return the bytes of toolkit.pyz.

    Every module is included as source, for tracebacks and for other Python versions, and compiled,
    which starts the sidecar in half the time. Python skips compiled files of another version.
    Nothing is compressed: the file is small, and reading is faster than inflating.

    `packed` may be a program that was made before. It is taken if it was made of these sources by
    this Python, since to compile takes a tenth of a second.
    """
    sources = tuple(_program_sources())
    mark = _program_digest(sources)
    if packed is not None:
        with suppress(OSError):
            made = packed.read_bytes()
            if made.endswith(mark):
                return made
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = mark  # these are the last bytes of the file
        for name, source in sources:
            _add_entry(archive, name, source)
            _add_entry(archive, f"{name}c", compile_pyc(source, f"toolkit.pyz/{name}"))
    return buffer.getvalue()


def _program_digest(sources: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a digest of all that a program is made of."""
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name, source in sources:
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest().encode()


def compile_pyc(source: bytes, filename: str, *, optimize: int = 0) -> bytes:
    """Return a .pyc that is never checked against its source; equal for equal sources."""
    code = compile(source, filename, "exec", dont_inherit=True, optimize=optimize)
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
    return header + marshal_code(code)


def marshal_code(code: CodeType) -> bytes:
    """Return the code as `marshal.loads` reads it; equal for equal code.

    Since Python 3.14 the constants of code may be slices. The format without references is older
    and refuses them, so they are written as marked tuples, whose beginning is then replaced. Every
    Python reads all that it knows, whatever the format.
    """
    data = marshal.dumps(_with_marked_slices(code), _WITHOUT_REFERENCES)
    return data.replace(_MARKED, _SLICE)


def _with_marked_slices(constant: Any) -> Any:
    match constant:
        case CodeType():
            constants = tuple(map(_with_marked_slices, constant.co_consts))
            return constant.replace(co_consts=constants)
        case tuple():
            return tuple(map(_with_marked_slices, constant))
        case slice():
            return _MARK, constant.start, constant.stop, constant.step
    return constant


def _program_sources() -> Iterator[tuple[str, bytes]]:
    package = Path(nodeside.__file__).parent
    yield "__main__.py", _MAIN
    for stem in SHARED:
        yield f"nodeside/{stem}.py", (package / f"{stem}.py").read_bytes()
    for path in sorted((package / "toolkit_sidecar").glob("*.py")):
        yield f"nodeside/toolkit_sidecar/{path.name}", path.read_bytes()


def _add_entry(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)
