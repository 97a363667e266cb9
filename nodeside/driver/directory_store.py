"""Bundles in a local directory: <directory>/<tag>.tar.gz, with <tag>.tar.gz.sha256 beside it.

The same files that an HTTP server shows to `HttpStore`, so publishing for one is writing here. An
archive appears by rename. The checksum is removed before an archive is replaced and written after,
so a reader meets an archive with its own checksum or with none.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from nodeside.digests import sha256_of
from nodeside.driver.archive import open_archive, pack, read_manifest, unpack
from nodeside.driver.bundle import Bundle
from nodeside.driver.store import (
    Accept,
    Described,
    Fetched,
    FetchError,
    FetchOptions,
    NotThere,
    Published,
    Store,
    already_there,
    checksum_in,
)
from nodeside.errors import SystemRefused
from nodeside.records import TEMPORARY_PREFIX, disk_errors, publish_bytes, sync_directory


class DirectoryStore(Store):
    """Use as a context manager, like the others; there is nothing to close."""

    def __init__(self, directory: Path, options: FetchOptions) -> None:
        self._directory = directory
        self._options = options
        self.where = str(directory)
        self.confidential = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def describe(self, tag: str) -> Described | None:
        archive = self._archive(tag)
        if not archive.exists():
            return None
        limit = self._options.size_limit
        try:
            with open_archive(archive, limit, str(archive)) as file:
                return Described(*read_manifest(file, limit, str(archive)))
        except SystemRefused as exc:
            raise _unreadable(exc) from exc

    def fetch(self, tag: str, to: Path, accept: Accept) -> Fetched | NotThere:
        archive = self._archive(tag)
        if not self._directory.is_dir():
            return NotThere(f"no directory {self._directory}")
        if not archive.exists():
            return NotThere(f"no {archive.name} there")
        self._compare_checksum(archive)
        bundle = unpack(archive, to, self._options.size_limit, accept=accept)
        return Fetched(bundle, f"{archive} ({bundle.digest})")

    def publish(self, bundle: Bundle, tag: str, *, overwrite: bool = False) -> Published:
        archive = self._archive(tag)
        there = self.describe(tag) if not overwrite else None
        if there is not None:
            return already_there(there, bundle, self.where, tag)
        with disk_errors(archive):
            self._directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=self._directory) as new:
                packed = Path(new) / archive.name
                pack(bundle, packed)
                sha256 = sha256_of(packed)
                with suppress(FileNotFoundError):
                    _checksum_of(archive).unlink()
                os.replace(packed, archive)
            sync_directory(self._directory)
        publish_bytes(_checksum_of(archive), f"{sha256}  {archive.name}\n".encode())
        return Published(self.where, tag, bundle.digest, already=False)

    def _archive(self, tag: str) -> Path:
        return self._directory / f"{tag}.tar.gz"

    def _compare_checksum(self, archive: Path) -> None:
        try:
            expected = checksum_in(_checksum_of(archive).read_bytes())
        except FileNotFoundError:
            return
        except OSError as exc:
            raise FetchError(f"cannot read {_checksum_of(archive)}: {exc.strerror}") from exc
        try:
            found = sha256_of(archive)
        except SystemRefused as exc:
            raise _unreadable(exc) from exc
        if expected != found:
            raise FetchError(
                f"{archive} has sha256 {found}, expected {expected or 'something else'}",
                reason="WrongDigest",
                hint=f"publish it again, or compare with {_checksum_of(archive)}",
            )


def _checksum_of(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.sha256")


def _unreadable(exc: SystemRefused) -> FetchError:
    return FetchError(str(exc), reason="Unreadable", hint=exc.hint)
