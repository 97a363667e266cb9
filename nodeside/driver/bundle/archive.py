"""Bundle archives: reproducible gzip-compressed tar files, read as untrusted input.

Anyone who can write to a store controls the contents of an archive. So our own loop reads it entry
by entry from a stream and accepts only `manifest.json`, its signature and `modules/<name>.ko` as
regular files. `tarfile` only parses the 512-byte headers: its own extraction supports links,
devices and extended headers of any size. The size limit applies to packed and to unpacked bytes.
A partially unpacked tree is never visible.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from nodeside.driver.bundle.bundle import (
    CHUNK,
    MANIFEST,
    SIGNATURE,
    Bundle,
    create_atomically,
    sync_files,
    write_file,
)
from nodeside.driver.bundle.manifest import (
    MANIFEST_LIMIT,
    MODULE_FILE,
    SIGNATURE_LIMIT,
    BundleError,
    BundleFile,
    BundleManifest,
    StoredManifest,
    parse_manifest,
)
from nodeside.system.files import disk_errors
from nodeside.values import frozen

_PACKED_CHUNK = 1 << 15  # packed bytes per read; zlib copies the unconsumed rest for each header
_BLOCK = 512
_ENTRY_LIMIT = 10_000
_LIMITS = {MANIFEST: MANIFEST_LIMIT, SIGNATURE: SIGNATURE_LIMIT}
_ALLOWED = "only manifest.json, manifest.json.p7s and modules/<name>.ko are allowed"
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a fifo",
    tarfile.XHDTYPE: "an extended header (pax)",
    tarfile.XGLTYPE: "an extended header (pax)",
    tarfile.GNUTYPE_LONGNAME: "a long name (GNU)",
    tarfile.GNUTYPE_LONGLINK: "a long link name (GNU)",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class Readable(Protocol):
    """A byte source for an archive: a file or the body of an HTTP response."""

    def read(self, count: int, /) -> bytes: ...


def pack_bundle(bundle: Bundle, to: Path) -> None:
    """Write the archive of a bundle to the new file `to` and sync it.

    Equal bundles give equal bytes: fixed order, no timestamps, no owners. The manifest comes first
    and its signature second, so a reader that needs only these can stop early.
    """
    signed = [SIGNATURE] if (bundle.directory / SIGNATURE).exists() else []
    files = [MANIFEST, *signed, *sorted(file.file for file in bundle.manifest.files())]
    with disk_errors(to), open(to, "xb") as raw:
        with (
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
            tarfile.TarFile(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for name in files:
                _add_file(tar, bundle.directory / name, name)
        raw.flush()
        os.fsync(raw.fileno())


def unpack_bundle(
    archive: Path,
    to: Path,
    size_limit: int,
    *,
    what: str = "",
    accept: Callable[[StoredManifest], None] | None = None,
) -> Bundle:
    """Unpack `archive` into a verified bundle at `to`, atomically.

    `size_limit` in bytes applies to packed and to unpacked data. `what` names the archive in
    messages (its origin); the default is its path. `accept` rejects a manifest by raising. Nothing
    is synced before `accept` returns, because ten thousand small files are cheap to publish and
    slow to sync. Raises BundleError, NoSpace, SystemRefused.
    """
    name = what or str(archive)
    with open_archive(archive, size_limit, name) as raw, create_atomically(to) as temporary:
        stream = _Unzipped(raw, size_limit, name)
        documents: dict[str, bytes] = {}  # the manifest and its signature
        modules: dict[str, BundleFile] = {}
        for entry in _read_entries(stream):
            if entry.name in modules or entry.name in documents:
                raise stream.bundle_error(f"{entry.name} appears twice")
            if entry.name in _LIMITS:
                documents[entry.name] = _read_document(stream, entry)
                write_file(temporary / entry.name, [documents[entry.name]], sync=False)
                continue
            modules[entry.name] = _extract_module(stream, entry, temporary)
        stream.finish()
        described = _parse_documents(stream, documents)
        if accept is not None:
            accept(described)
        _compare_files(described.manifest, modules, name)
        sync_files(temporary)
    return Bundle(to, described.manifest, described.digest)


def peek_manifest(stream: Readable, size_limit: int, what: str) -> StoredManifest:
    """Return the manifest of an archive, reading no further than needed.

    The signature is included if it comes next, where `pack_bundle` puts it.
    """
    unzipped = _Unzipped(stream, size_limit, what)
    documents: dict[str, bytes] = {}
    for entry in _read_entries(unzipped):
        if entry.name in documents:
            raise unzipped.bundle_error(f"{entry.name} appears twice")
        if entry.name in _LIMITS:
            documents[entry.name] = _read_document(unzipped, entry)
        elif MANIFEST in documents:
            break
        else:
            for _ in unzipped.read_chunks(entry.size):
                pass
        if len(documents) == len(_LIMITS):
            break
    return _parse_documents(unzipped, documents)


def open_archive(archive: Path, size_limit: int, what: str) -> BufferedReader:
    """Open an archive for reading. Raises BundleError if it cannot be opened or is too large."""
    try:
        # O_NONBLOCK: opening a fifo would block forever.
        file = os.fdopen(os.open(archive, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as exc:
        raise BundleError(f"cannot read {what}: {exc.strerror}") from exc
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size <= size_limit:
        return file
    file.close()
    if not stat.S_ISREG(status.st_mode):
        raise BundleError(f"{what}: not a regular file")
    raise BundleError(
        f"{what}: {status.st_size} bytes, at most {size_limit} are read",
        hint="raise spec.prebuilt.sizeLimitMib in driver.yaml if the bundle is that large",
    )


@frozen
class _Entry:
    name: str
    size: int


class _Unzipped:
    """The decompressed bytes of one gzip member, counted. A read is complete or raises."""

    def __init__(self, packed: Readable, limit: int, what: str) -> None:
        self._packed = packed
        self._inflate = zlib.decompressobj(wbits=31)  # 31: gzip, with its checksum
        self._limit = limit
        self._read = 0
        self.what = what

    def bundle_error(self, problem: str) -> BundleError:
        return BundleError(f"{self.what}: {problem}")

    def read_exactly(self, count: int) -> bytes:
        """Return `count` bytes. Raises BundleError if the archive ends early."""
        return b"".join(self.read_chunks(count))

    def read_chunks(self, count: int) -> Iterator[bytes]:
        """Yield `count` bytes in pieces, then skip the padding to a whole block."""
        left, padding = count, -count % _BLOCK
        while left:
            piece = self._read_some(min(left, CHUNK))
            left -= len(piece)
            yield piece
        while padding:
            padding -= len(self._read_some(padding))

    def finish(self) -> None:
        """Read to the end of the file. Only zeros may follow the last entry."""
        while piece := self._read_some(CHUNK, may_end=True):
            if piece.strip(b"\0"):
                raise self.bundle_error("data follows the end of the archive")
        if self._inflate.unused_data or self._packed.read(1):
            raise self.bundle_error("data follows the end of the compressed data")

    def _read_some(self, count: int, *, may_end: bool = False) -> bytes:
        """Return 1 to `count` bytes; none only if the stream has ended and `may_end` is set."""
        while not self._inflate.eof:
            data = self._inflate.unconsumed_tail or self._read_packed()
            try:
                piece = self._inflate.decompress(data, count)
            except zlib.error as exc:
                raise self.bundle_error(f"not a gzip file, or damaged: {exc}") from exc
            if piece:
                return self._count_bytes(piece)
            if not data:
                raise self.bundle_error("the archive is truncated")
        if may_end:
            return b""
        raise self.bundle_error("the archive is truncated")

    def _read_packed(self) -> bytes:
        """Read packed bytes. A read error here must not be blamed on the disk being written to."""
        try:
            return self._packed.read(_PACKED_CHUNK)
        except OSError as exc:
            raise self.bundle_error(f"cannot be read: {exc.strerror}") from exc

    def _count_bytes(self, piece: bytes) -> bytes:
        self._read += len(piece)
        if self._read > self._limit:
            raise BundleError(
                f"{self.what}: it unpacks to more than {self._limit} bytes",
                hint="raise spec.prebuilt.sizeLimitMib in driver.yaml if the bundle is that large",
            )
        return piece


def _read_entries(stream: _Unzipped) -> Iterator[_Entry]:
    """Yield the files of an archive. The caller must read each file before the next one."""
    for _ in range(_ENTRY_LIMIT):
        info = _read_header(stream)
        if info is None:
            return
        if info.isdir() and info.name == "modules":
            continue
        yield _check_entry(info, stream)
    if _read_header(stream) is not None:
        raise stream.bundle_error(f"it has more than {_ENTRY_LIMIT} entries")


def _read_header(stream: _Unzipped) -> tarfile.TarInfo | None:
    """Return the next header, or None at the end of the archive."""
    block = stream.read_exactly(_BLOCK)
    if not block.strip(b"\0"):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.TarError, ValueError) as exc:
        raise stream.bundle_error(f"not a tar archive, or damaged: {exc}") from exc


def _check_entry(info: tarfile.TarInfo, stream: _Unzipped) -> _Entry:
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        kind = _KINDS.get(info.type, "a directory" if info.isdir() else f"of type {info.type!r}")
        raise stream.bundle_error(f"{info.name!r:.120} is {kind}; {_ALLOWED}")
    if info.name not in _LIMITS and not MODULE_FILE.fullmatch(info.name):
        raise stream.bundle_error(f"unexpected entry {info.name!r:.120}; {_ALLOWED}")
    if info.size < 0:
        raise stream.bundle_error(f"{info.name} has a negative size")
    return _Entry(info.name, info.size)


def _extract_module(stream: _Unzipped, entry: _Entry, to: Path) -> BundleFile:
    sha256, size = write_file(to / entry.name, stream.read_chunks(entry.size), sync=False)
    return BundleFile(entry.name, sha256, size)


def _read_document(stream: _Unzipped, entry: _Entry) -> bytes:
    """Return the contents of the manifest or of its signature."""
    limit = _LIMITS[entry.name]
    if entry.size > limit:
        what = "the manifest" if entry.name == MANIFEST else "the signature"
        words = f"{limit >> 20} MiB" if limit >> 20 else f"{limit >> 10} KiB"
        raise stream.bundle_error(f"{what} has more than {words}")
    return b"".join(stream.read_chunks(entry.size))


def _parse_documents(stream: _Unzipped, documents: Mapping[str, bytes]) -> StoredManifest:
    data = documents.get(MANIFEST)
    if data is None:
        raise stream.bundle_error("it has no manifest.json")
    return StoredManifest(parse_manifest(data, stream.what), data, documents.get(SIGNATURE, b""))


def _compare_files(manifest: BundleManifest, files: dict[str, BundleFile], what: str) -> None:
    """Raise BundleError unless the files are exactly what the manifest describes."""
    listed = {file.file: file for file in manifest.files()}
    for name in sorted(listed.keys() - files.keys()):
        raise BundleError(f"{what}: {name} is missing")
    for name in sorted(files.keys() - listed.keys()):
        raise BundleError(f"{what}: {name} is not in the manifest")
    for name, file in files.items():
        if file != listed[name]:
            raise BundleError(
                f"{what}: {name} has {file.size} bytes and sha256 {file.sha256}, "
                f"expected {listed[name].size} bytes and {listed[name].sha256}"
            )


def _add_file(tar: tarfile.TarFile, path: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    with open(path, "rb") as file:
        info.size = path.stat().st_size
        try:
            tar.addfile(info, file)
        except ValueError as exc:  # USTAR splits long names at a slash, and sometimes cannot
            raise BundleError(f"{path}: the name does not fit into a tar header: {exc}") from exc
