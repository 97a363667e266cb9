"""Bundles in a local directory: <directory>/<tag>.tar.gz, with <tag>.tar.gz.sha256 next to it.

An HTTP server can serve the same files to `HttpStore`; to publish for one, write here. An archive
appears by rename. The checksum is removed before an archive is replaced and written afterwards, so
a reader sees an archive with its own checksum or with none. Only regular files are opened, so
another process that can write to the directory cannot make a reader block.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from nodeside.driver.bundle.archive import open_archive, pack_bundle, peek_manifest, unpack_bundle
from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.bundle.manifest import StoredManifest
from nodeside.driver.store.base import (
    Accept,
    Fetched,
    FetchError,
    FetchOptions,
    NotThere,
    Published,
    Store,
    already_published,
    parse_checksum,
)
from nodeside.system.digests import sha256_of
from nodeside.system.files import (
    TEMPORARY_PREFIX,
    UntrustedFile,
    disk_errors,
    open_untrusted,
    publish_bytes,
    sync_directory,
)

_CHECKSUM_LIMIT = 4096


class DirectoryStore(Store):
    """A local directory. Use as a context manager like other stores; nothing is closed."""

    def __init__(self, directory: Path, options: FetchOptions) -> None:
        self._directory = directory
        self._options = options
        self.where = str(directory)
        self.confidential = True

    def __exit__(self, *_: object) -> None:
        pass

    def describe(self, tag: str) -> StoredManifest | None:
        archive, limit = self._archive_path(tag), self._options.size_limit
        if not _is_there(archive):
            return None
        with open_archive(archive, limit, str(archive)) as file:
            return peek_manifest(file, limit, str(archive))

    def fetch(self, tag: str, to: Path, accept: Accept) -> Fetched | NotThere:
        archive = self._archive_path(tag)
        if not _is_there(self._directory):
            return NotThere(f"no directory {self._directory}")
        if not _is_there(archive):
            return NotThere(f"no {archive.name} there")
        self._compare_checksum(archive)
        bundle = unpack_bundle(archive, to, self._options.size_limit, accept=accept)
        return Fetched(bundle, f"{archive} ({bundle.digest})")

    def publish(self, bundle: Bundle, tag: str, *, overwrite: bool = False) -> Published:
        archive = self._archive_path(tag)
        existing = self.describe(tag) if not overwrite else None
        if existing and (done := already_published(existing, bundle, self.where, tag)):
            return done
        with disk_errors(archive):
            self._directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=self._directory) as new:
                packed = Path(new) / archive.name
                pack_bundle(bundle, packed)
                sha256 = sha256_of(packed)
                with suppress(FileNotFoundError):
                    _checksum_of(archive).unlink()
                os.replace(packed, archive)
            sync_directory(self._directory)
        publish_bytes(_checksum_of(archive), f"{sha256}  {archive.name}\n".encode())
        return Published(self.where, tag, bundle.digest, already=False)

    def _archive_path(self, tag: str) -> Path:
        return self._directory / f"{tag}.tar.gz"

    def _compare_checksum(self, archive: Path) -> None:
        path = _checksum_of(archive)
        try:
            with open_untrusted(Path(os.path.realpath(path)), limit=_CHECKSUM_LIMIT) as checksum:
                expected = parse_checksum(checksum.read())
        except FileNotFoundError:
            return
        except (UntrustedFile, OSError) as exc:
            raise FetchError(f"cannot read {path}: {exc}") from exc
        with open_archive(archive, self._options.size_limit, str(archive)) as file:
            actual = _file_digest(file, archive)
        if expected != actual:
            raise FetchError(
                f"{archive} has sha256 {actual}, expected {expected or f'one in {path.name}'}",
                reason="WrongDigest",
                hint=f"publish it again, or compare with {path}",
            )


def _checksum_of(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.sha256")


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise _unreadable_error(path, exc) from exc
    return True


def _file_digest(file: BufferedReader, path: Path) -> str:
    try:
        return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise _unreadable_error(path, exc) from exc


def _unreadable_error(path: Path, exc: OSError) -> FetchError:
    return FetchError(f"cannot read {path}: {exc.strerror}", reason="Unreadable")
