"""Decompression of kernel modules (.ko.gz, .ko.xz, .ko.zst), up to a size limit.

The kernel cannot be relied on to decompress modules (CONFIG_MODULE_DECOMPRESS is rare), so
nodeside decompresses them before it loads or reads them. The format is detected from the first
bytes of the file, not from its name. A decompression bomb is refused at the limit.
"""

from __future__ import annotations

import lzma
import os
import signal
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from nodeside.driver.module.elf import NotAModule
from nodeside.errors import SystemRefused
from nodeside.system.files import TEMPORARY_PREFIX, disk_errors, sync_directory
from nodeside.system.process import ToolError, run
from nodeside.system.scratch import scratch_directory

# Bytes of an uncompressed module; the largest, with debug information, are ~300 MB.
MODULE_LIMIT = 512 << 20

_CHUNK = 1 << 18
_XZ_MEMORY = 128 << 20
_ZSTD_TIMEOUT = 120.0  # seconds
_MAGIC = {b"\x1f\x8b": "gz", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zst"}


def decompress(path: Path, to: Path, *, limit: int = MODULE_LIMIT) -> Path:
    """Decompress the module at `path` to `to` atomically, and return `to`.

    An uncompressed file is copied. Raises NotAModule if the file is damaged or the uncompressed
    module is larger than `limit` bytes.
    """
    temporary = to.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{to.name}"
    with disk_errors(to):
        try:
            with open_module(path, limit=limit) as source, open(temporary, "wb") as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
                target.flush()
                os.fsync(target.fileno())
            os.replace(temporary, to)
            sync_directory(to.parent)
        finally:
            temporary.unlink(missing_ok=True)
    return to


@contextmanager
def open_module(path: Path, *, limit: int = MODULE_LIMIT) -> Iterator[IO[bytes]]:
    """Open a module, compressed or not, as a seekable file of its uncompressed bytes."""
    with _open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise _too_large_error(path, limit)
        kind = _compression_of(file.read(8))
        file.seek(0)
        if not kind:
            yield file
            return
        with _decompress_into_memory(file, kind, path, limit) as plain:
            yield plain


def _open_regular(path: Path) -> IO[bytes]:
    """Open unbuffered, since readers read whole sections, and without blocking on a pipe."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise SystemRefused(f"cannot read the module {path}: {exc.strerror}") from exc
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotAModule(f"{path}: not a kernel module: expected a regular file")
    return os.fdopen(fd, "rb", buffering=0)


def _compression_of(head: bytes) -> str:
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")


@contextmanager
def _decompress_into_memory(
    file: IO[bytes], kind: str, path: Path, limit: int
) -> Iterator[IO[bytes]]:
    """Decompress into anonymous memory (memfd), so nothing is written to disk."""
    with os.fdopen(
        os.memfd_create(f"nodeside-{kind}", os.MFD_CLOEXEC), "w+b", buffering=0
    ) as plain:
        chunks = {"gz": _gunzip, "xz": _unxz, "zst": _unzstd}[kind](file, path, limit)
        try:
            _write_chunks(plain, chunks, path, limit)
        except (zlib.error, lzma.LZMAError, EOFError) as exc:
            raise NotAModule(
                f"{path}: damaged {kind} file: {exc}", hint="copy or fetch it again"
            ) from exc
        plain.seek(0)
        yield plain


def _write_chunks(plain: IO[bytes], chunks: Iterator[bytes], path: Path, limit: int) -> None:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise _too_large_error(path, limit)
        plain.write(chunk)


def _gunzip(file: IO[bytes], _path: Path, _limit: int) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)  # 31: a gzip header is expected
    while data := file.read(_CHUNK):
        while data and not stream.eof:
            yield stream.decompress(data, _CHUNK)
            data = stream.unconsumed_tail
    if not stream.eof:
        raise EOFError("unexpected end of file")


def _unxz(file: IO[bytes], _path: Path, _limit: int) -> Iterator[bytes]:
    stream = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
    while not stream.eof:
        data = file.read(_CHUNK) if stream.needs_input else b""
        if stream.needs_input and not data:
            raise EOFError("unexpected end of file")
        yield stream.decompress(data, _CHUNK)


def _unzstd(_file: IO[bytes], path: Path, limit: int) -> Iterator[bytes]:
    """Decompress with the `zstd` tool: the standard library of Python 3.11 has no zstd.

    The kernel kills the tool if its output exceeds the limit (RLIMIT_FSIZE, setrlimit(2)).
    """
    with scratch_directory("zstd") as directory:
        plain = directory / "module.ko"
        argv: list[str | Path] = ["zstd", "-d", "-q", "--memory=128MB", "-o", plain, "--", path]
        try:
            run(
                argv,
                timeout=_ZSTD_TIMEOUT,
                wrapper=lambda: _limit_files(limit),
                install="install the package zstd: apt-get install zstd",
            )
        except ToolError as exc:
            if exc.completed.exit_code == -signal.SIGXFSZ:
                raise _too_large_error(path, limit) from exc
            raise NotAModule(f"{path}: damaged zst file: {exc}") from exc
        with open(plain, "rb") as file:
            while data := file.read(_CHUNK):
                yield data


def _limit_files(limit: int) -> None:
    import resource  # only in the child process

    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _too_large_error(path: Path, limit: int) -> NotAModule:
    return NotAModule(f"{path}: a module of more than {limit >> 20} MiB is refused")
