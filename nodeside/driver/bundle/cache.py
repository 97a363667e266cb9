"""The node's bundle cache: a host path that survives pod deletion, reboots and power loss.

    <root>/
      .tmp-*/                 staging: bundles being built or fetched, locked while in use
      <driver>/
        .lock                 held shared while a bundle is verified, exclusive while one changes
        <tag>/                a bundle: manifest.json, its .p7s, modules/*.ko
        .built-<sha256>       marker: the bundle with this digest was built here, not fetched
        .tmp-*/               a bundle being removed
        .damaged-<tag>-<n>/   a bundle that failed verification; `remove_other_bundles` removes it

A bundle appears when a complete, synced directory is renamed into place. It is renamed away before
it is deleted, so a tag is always either complete or absent. A crash leaves at most `.tmp-*`
directories, which are never taken for bundles. `remove_other_bundles` removes those that no process
has locked, and the next `staging_directory` does so in `<root>`. Every bundle is verified before
use. One that fails verification is set aside and treated as absent from then on.

Whether a bundle may be used is not decided here: `trust.py` judges fetched bundles on every use.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path

from nodeside import log
from nodeside.driver.bundle.bundle import MANIFEST, Bundle, read_bundle, read_manifest, sync_files
from nodeside.driver.bundle.manifest import BundleError, BundleManifest, StoredManifest
from nodeside.errors import Locked, NodesideError, SystemRefused
from nodeside.protocol.bundle_key import store_tag
from nodeside.system.clock import Clock
from nodeside.system.digests import sha256_of
from nodeside.system.file_lock import take_lock
from nodeside.system.files import TEMPORARY_PREFIX, disk_errors, publish_bytes, sync_directory
from nodeside.system.selinux import FOR_MODULES, label_file
from nodeside.values import frozen

_DAMAGED_PREFIX = ".damaged-"
_BUILT_PREFIX = ".built-"
_LOCK = ".lock"
_LOCK_TIMEOUT = 60.0  # seconds; a lock is held for one verification, about 1 s per GiB


@frozen
class CachedManifest:
    """The manifest of a cached bundle, unverified and therefore without a path to its files."""

    tag: str
    manifest: BundleManifest


@frozen
class Cache:
    """The bundles below `root`. Several processes may use it at once."""

    root: Path
    clock: Clock = field(default_factory=Clock, compare=False, repr=False)

    def look_up_bundle(self, tag: str, key: str, driver: str) -> Bundle | None:
        """Return the bundle with this tag and key, with every file verified, or None.

        A bundle of another version also matches: equal keys mean equal source, settings and kernel.
        A damaged one is set aside and logged.
        """
        for directory in self._candidate_directories(tag, driver):
            with self._hold_lock(directory.parent, shared=True):
                bundle, problem = _examine_directory(directory)
            if problem:
                self._set_aside(directory)
            elif bundle is not None and _is_wanted(bundle, key, driver):
                return bundle
        return None

    def peek_bundle(self, tag: str, key: str, driver: str) -> Bundle | None:
        """Look up a bundle like `look_up_bundle`, but change nothing.

        A damaged bundle stays in place. Raises BundleError for it if no other one matches.
        """
        problems = []
        for directory in self._candidate_directories(tag, driver):
            with self._hold_lock(directory.parent, shared=True):
                bundle, problem = _examine_directory(directory)
            if problem:
                problems.append(problem)
            elif bundle is not None and _is_wanted(bundle, key, driver):
                return bundle
        if problems:
            raise BundleError(problems[0])
        return None

    def describe(self, tag: str, driver: str) -> StoredManifest | None:
        """Return manifest and signature, unverified, to compare with the loaded modules."""
        for directory in self._candidate_directories(tag, driver):
            with (
                suppress(BundleError, SystemRefused),
                self._hold_lock(directory.parent, shared=True),
            ):
                return read_manifest(directory)
        return None

    def built_here(self, driver: str, digest: str) -> bool:
        """Return whether the bundle with this digest was built on this node."""
        return _built_marker(self.root / driver, digest).exists()

    def list_manifests(self, driver: str) -> Iterator[CachedManifest]:
        """Yield the manifests of a driver's bundles, newest first, unverified."""
        for directory in sorted(self._bundle_directories(driver), key=_modified_at, reverse=True):
            try:
                manifest = read_manifest(directory).manifest
            except (BundleError, SystemRefused) as exc:  # includes disk read errors
                log.detail("skipped a directory that is not a bundle", path=directory, why=exc)
            else:
                yield CachedManifest(directory.name, manifest)

    @contextmanager
    def staging_directory(self) -> Iterator[Path]:
        """Yield a directory on the cache's file system and remove it at the end of the block.

        Leftovers of killed processes are removed first: a driver that is killed again and again
        while it stores a build, a GiB each time, never reaches `remove_other_bundles`. Raises
        NoSpace, SystemRefused.
        """
        with disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):
                self._remove_leftovers(self.root)
            directory, lock = self._new_staging()
        try:
            yield directory
        finally:
            os.close(lock)
            shutil.rmtree(directory, ignore_errors=True)

    def adopt_bundle(self, directory: Path, *, built_here: bool = False) -> Bundle:
        """Verify the bundle at `directory` and move it into place. Returns the bundle now in place.

        `built_here` means that it was built on this node, so it needs no trust in a store. An equal
        bundle already in place stays; a damaged or different one is replaced.
        Raises BundleError, NoSpace, SystemRefused, Locked.
        """
        bundle = read_bundle(directory)
        manifest = bundle.manifest
        tag = store_tag(manifest.version, manifest.kernel, manifest.key)
        place = self.root / manifest.driver / tag
        with disk_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            sync_directory(self.root)
            for module in bundle.manifest.modules:
                label_file(bundle.module_path(module.name), FOR_MODULES)
            _sync_tree(directory)
            with self._hold_lock(place.parent):
                if built_here:
                    publish_bytes(_built_marker(place.parent, bundle.digest), b"")
                return self._replace_bundle(place, bundle)

    def remove_other_bundles(self, driver: str, keep: set[str]) -> tuple[str, ...]:
        """Remove the driver's bundles except those tagged in `keep`. Returns the removed tags.

        Also removes leftovers of crashes. Never fails a load: removal errors are only logged.
        """
        removed = []
        try:
            with self._hold_lock(self.root / driver):
                for directory in self._bundle_directories(driver):
                    if directory.name not in keep:
                        self._remove_directory(directory)
                        removed.append(directory.name)
                self._remove_leftovers(self.root / driver)
                self._remove_markers(driver)
            self._remove_leftovers(self.root)
        except (OSError, NodesideError) as exc:
            log.warning("the cache could not be cleaned", path=self.root / driver, why=exc)
        return tuple(sorted(removed))

    # --- places and locks ---------------------------------------------------------------------

    def _candidate_directories(self, tag: str, driver: str) -> Iterator[Path]:
        """Yield the directory of this tag, then of other tags that end with the same key."""
        if not tag or "/" in tag or tag.startswith("."):
            raise BundleError(f"{tag!r} is not the tag of a bundle")
        key, parent = tag.rpartition("-")[2], self.root / driver
        if parent.is_dir():
            yield parent / tag
            others = (path for path in _list_directories(parent) if path.name != tag)
            yield from (path for path in others if path.name.rpartition("-")[2] == key)

    def _bundle_directories(self, driver: str) -> list[Path]:
        return _list_directories(self.root / driver)

    @contextmanager
    def _hold_lock(self, directory: Path, *, shared: bool = False) -> Iterator[None]:
        """Hold the driver's lock. Readers need none on a read-only file system: nobody writes."""
        path = directory / _LOCK
        try:
            # Mode 0600, since any process that can open the lock file can hold the lock.
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with suppress(PermissionError):
                os.fchmod(fd, 0o600)
        except OSError as exc:
            if not shared and directory.is_dir():
                raise SystemRefused(
                    f"cannot write to {directory}: {exc.strerror}",
                    hint="the cache must be a writable host path that survives reboots",
                ) from exc
            yield
            return
        try:
            if not take_lock(fd, within=_LOCK_TIMEOUT, shared=shared, clock=self.clock):
                raise Locked(f"another process has held {path} for {_LOCK_TIMEOUT:g} s")
            yield
        finally:
            os.close(fd)

    def _new_staging(self) -> tuple[Path, int]:
        """Create a directory. Returns it and a locked descriptor, which marks it as in use."""
        while True:
            directory = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=self.root))
            with suppress(FileNotFoundError):
                fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                # Another process may have removed it as a leftover before it was locked.
                if take_lock(fd) and directory.is_dir():
                    return directory, fd
                os.close(fd)

    # --- changes, all made by rename ----------------------------------------------------------

    def _replace_bundle(self, place: Path, bundle: Bundle) -> Bundle:
        existing, problem = _examine_directory(place)
        if (
            existing is not None
            and existing.digest == bundle.digest
            and _has_same_signature(place, bundle)
        ):
            return existing
        if problem:
            _rename_damaged(place)
        elif existing is not None:
            log.fact("replaced a bundle with the same key", tag=place.name, was=existing.digest)
            self._remove_directory(place)
        bundle.directory.rename(place)
        sync_directory(place.parent)
        return Bundle(place, bundle.manifest, bundle.digest)

    def _set_aside(self, directory: Path) -> None:
        """Rename a damaged bundle, unless another process has replaced it in the meantime."""
        try:
            with self._hold_lock(directory.parent):
                _, problem = _examine_directory(directory)
                if problem:
                    aside = _rename_damaged(directory)
                    log.warning("a damaged bundle was set aside", to=aside, why=problem)
        except (OSError, NodesideError) as exc:
            log.warning("a damaged bundle is not used", path=directory, why=exc)

    def _remove_directory(self, directory: Path) -> None:
        """Remove a directory without ever exposing it half removed."""
        doomed = directory
        if not directory.is_dir() or directory.is_symlink():
            directory.unlink()
            return
        if not directory.name.startswith(TEMPORARY_PREFIX):
            doomed = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=directory.parent))
            directory.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _remove_leftovers(self, directory: Path) -> None:
        for path in _list_entries(directory):
            if path.name.startswith(_DAMAGED_PREFIX):
                log.detail("removed a leftover", path=path)
                self._remove_directory(path)
            elif path.name.startswith(TEMPORARY_PREFIX):
                with _try_lock(path) as unused:
                    if unused:
                        log.detail("removed a leftover", path=path)
                        self._remove_directory(path)

    def _remove_markers(self, driver: str) -> None:
        """Remove the `.built-*` markers of bundles that are gone."""
        parent = self.root / driver
        manifests = (directory / MANIFEST for directory in self._bundle_directories(driver))
        markers = {_built_marker(parent, sha256_of(path)) for path in manifests if path.is_file()}
        for path in _list_entries(parent):
            if path.name.startswith(_BUILT_PREFIX) and path not in markers:
                self._remove_directory(path)


def _built_marker(parent: Path, digest: str) -> Path:
    return parent / f"{_BUILT_PREFIX}{digest.removeprefix('sha256:')}"


def _has_same_signature(place: Path, bundle: Bundle) -> bool:
    """Return whether the bundle at `place` has the same signature as `bundle`, its equal."""
    return read_manifest(place).signature == read_manifest(bundle.directory).signature


def _examine_directory(directory: Path) -> tuple[Bundle | None, str]:
    """Return the verified bundle at `directory`, or None and the problem ("": nothing there)."""
    if not directory.is_dir():
        return None, ""
    try:
        bundle = read_bundle(directory)
    except (BundleError, SystemRefused) as exc:  # includes disk read errors
        return None, str(exc)
    return bundle, ""


def _is_wanted(bundle: Bundle, key: str, driver: str) -> bool:
    manifest = bundle.manifest
    if manifest.key != key or manifest.driver != driver:
        log.fact("a bundle with this tag has another key", path=bundle.directory, key=manifest.key)
        return False
    return True


def _rename_damaged(directory: Path) -> Path:
    number = 1
    while (aside := directory.parent / f"{_DAMAGED_PREFIX}{directory.name}-{number}").exists():
        number += 1
    directory.rename(aside)
    return aside


@contextmanager
def _try_lock(staging: Path) -> Iterator[bool]:
    """Yield whether no process has locked this staging directory; hold its lock meanwhile.

    A directory that cannot be opened counts as not locked.
    """
    try:
        fd = os.open(staging, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield True
        return
    try:
        yield take_lock(fd)
    finally:
        os.close(fd)


def _list_directories(parent: Path) -> list[Path]:
    """Return the driver or bundle directories in `parent`, without temporary and damaged ones."""
    return [
        path for path in _list_entries(parent) if not path.name.startswith(".") and path.is_dir()
    ]


def _list_entries(parent: Path) -> list[Path]:
    try:
        return sorted(parent.iterdir())
    except OSError:
        return []


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _sync_tree(directory: Path) -> None:
    """Sync all files and directories, since their writer may not have done so."""
    sync_files(directory)
    for path in (*(p for p in directory.rglob("*") if p.is_dir()), directory):
        sync_directory(path)
