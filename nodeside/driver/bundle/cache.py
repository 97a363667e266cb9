"""The node's cache of bundles: a host path that survives pod deletion, reboots and power cuts.

    <root>/
      .tmp-*/                 staging: bundles being built or fetched, locked while in use
      <driver>/
        .lock                 held shared while a bundle is verified, exclusive while one changes
        <tag>/                a bundle: manifest.json, its .p7s, modules/*.ko
        .built-<sha256>       the bundle with this digest was built here, and not fetched
        .tmp-*/               a bundle on its way out
        .damaged-<tag>-<n>/   set aside because it does not verify; removed by the next `collect`

A bundle appears by renaming a complete, synced directory, and goes by being renamed away first, so
at any moment a tag is there whole or not at all. A crash leaves at most `.tmp-*` directories, which
nobody takes for bundles; those that no process has locked are removed by `collect`, and by whoever
stages next. Whatever is found is verified before it is used: what does not verify is set aside, and
is absent from then on.
Whether it may be used is not decided here: `trust.py` judges what was fetched, each time anew.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nodeside import log
from nodeside.clock import Clock
from nodeside.contract import store_tag
from nodeside.digests import sha256_of
from nodeside.driver.bundle.bundle import (
    MANIFEST,
    Bundle,
    BundleError,
    BundleManifest,
    Described,
    read_bundle,
    read_manifest,
    sync_files,
)
from nodeside.errors import Locked, NodesideError, SystemRefused
from nodeside.filelock import take_lock
from nodeside.files import TEMPORARY_PREFIX, disk_errors, publish_bytes, sync_directory

_DAMAGED_PREFIX = ".damaged-"
_BUILT_PREFIX = ".built-"
_LOCK = ".lock"
_LOCK_TIMEOUT = 60.0  # seconds; a lock is held for one verification, a second for a GiB or so


@dataclass(frozen=True)
class CachedManifest:
    """What a bundle in the cache says it is. Nothing was verified, so it leads to no file."""

    tag: str
    manifest: BundleManifest


@dataclass(frozen=True)
class Cache:
    """Bundles below `root`. Several processes may use it at once."""

    root: Path
    clock: Clock = field(default_factory=Clock, compare=False, repr=False)

    def lookup(self, tag: str, key: str, driver: str = "") -> Bundle | None:
        """The bundle of this tag and key, every file verified, or None.

        One of another version serves too: equal keys mean the same source, settings and kernel. A
        damaged one is set aside and said. Without `driver`, bundles of every driver are seen.
        """
        for directory in self._places(tag, driver):
            with self._locked(directory.parent, shared=True):
                bundle, problem = _examine(directory)
            if problem:
                self._set_aside(directory)
            elif bundle is not None and _is_wanted(bundle, key, driver):
                return bundle
        return None

    def peek(self, tag: str, key: str, driver: str) -> Bundle | None:
        """As `lookup`, for who must change nothing: a damaged bundle stays, and is a BundleError if
        no other one serves."""
        problems = []
        for directory in self._places(tag, driver):
            with self._locked(directory.parent, shared=True):
                bundle, problem = _examine(directory)
            if problem:
                problems.append(problem)
            elif bundle is not None and _is_wanted(bundle, key, driver):
                return bundle
        if problems:
            raise BundleError(problems[0])
        return None

    def manifest_for(self, tag: str, driver: str = "") -> BundleManifest | None:
        """The manifest of a bundle, its files not verified."""
        found = self.described(tag, driver)
        return found.manifest if found else None

    def described(self, tag: str, driver: str = "") -> Described | None:
        """The manifest and its signature, nothing verified: to compare with what is loaded."""
        for directory in self._places(tag, driver):
            with suppress(BundleError, SystemRefused), self._locked(directory.parent, shared=True):
                return read_manifest(directory)
        return None

    def built_here(self, driver: str, digest: str) -> bool:
        """Whether the bundle with this digest was built on this node."""
        return _mark(self.root / driver, digest).exists()

    def manifests(self, driver: str) -> Iterator[CachedManifest]:
        """What every bundle of a driver says it is, newest first; `peek` or `lookup` verifies."""
        for directory in sorted(self._tags(driver), key=_modified, reverse=True):
            try:
                manifest = read_manifest(directory).manifest
            except (BundleError, SystemRefused) as exc:  # also a disk that cannot read it
                log.detail("not a bundle", path=directory, problem=exc)
            else:
                yield CachedManifest(directory.name, manifest)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A directory on the cache's file system, removed at the end of the block.

        What killed processes left goes first: a driver that is killed again and again while it
        takes a build, a GiB each time, never comes to `collect`. Raises NoSpace, SystemRefused.
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

    def adopt(self, directory: Path, *, built_here: bool = False) -> Bundle:
        """Verify the bundle at `directory` and move it to its place; the bundle that is there now.

        `built_here`: it was not fetched, so that no trust in a store is needed. If an equal one is
        there already, that one stays; a damaged or different one makes way.
        Raises BundleError, NoSpace, SystemRefused, Locked.
        """
        bundle = read_bundle(directory)
        manifest = bundle.manifest
        tag = store_tag(manifest.version, manifest.kernel, manifest.key)
        place = self.root / manifest.driver / tag
        with disk_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            sync_directory(self.root)
            _sync_tree(directory)
            with self._locked(place.parent):
                if built_here:
                    publish_bytes(_mark(place.parent, bundle.digest), b"")
                return self._replace(place, bundle)

    def collect(self, driver: str, keep: set[str]) -> tuple[str, ...]:
        """Remove the driver's bundles but those whose tags are in `keep`; the tags removed.

        Also removes what crashes left behind. Never fails a load: what cannot be removed is said.
        """
        removed = []
        try:
            with self._locked(self.root / driver):
                for directory in self._tags(driver):
                    if directory.name not in keep:
                        self._remove(directory)
                        removed.append(directory.name)
                self._remove_leftovers(self.root / driver)
                self._remove_marks(driver)
            self._remove_leftovers(self.root)
        except (OSError, NodesideError) as exc:
            log.warning("the cache could not be cleaned", path=self.root / driver, problem=exc)
        return tuple(sorted(removed))

    # --- places and locks ---------------------------------------------------------------------

    def _places(self, tag: str, driver: str) -> Iterator[Path]:
        """Where a bundle of this tag is, then where those are whose tags end with its key."""
        if not tag or "/" in tag or tag.startswith("."):
            raise BundleError(f"{tag!r} is not the tag of a bundle")
        parents = [self.root / driver] if driver else _directories(self.root)
        key = tag.rpartition("-")[2]
        for parent in (parent for parent in parents if parent.is_dir()):
            yield parent / tag
            others = (path for path in _directories(parent) if path.name != tag)
            yield from (path for path in others if path.name.rpartition("-")[2] == key)

    def _tags(self, driver: str) -> list[Path]:
        return _directories(self.root / driver)

    @contextmanager
    def _locked(self, directory: Path, *, shared: bool = False) -> Iterator[None]:
        """Hold the driver's lock. On a read-only file system nobody writes: no lock is needed."""
        try:
            # For nobody else to open: whoever can open a lock can hold it.
            fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
                raise Locked(f"another process holds {directory / _LOCK} for {_LOCK_TIMEOUT:g} s")
            yield
        finally:
            os.close(fd)

    def _new_staging(self) -> tuple[Path, int]:
        """A new directory and a locked descriptor of it, which says that it is in use."""
        while True:
            directory = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=self.root))
            with suppress(FileNotFoundError):
                fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                # Before it was locked, another process may have taken it for a leftover.
                if take_lock(fd) and directory.is_dir():
                    return directory, fd
                os.close(fd)

    # --- changes, all of them renames ---------------------------------------------------------

    def _replace(self, place: Path, bundle: Bundle) -> Bundle:
        existing, problem = _examine(place)
        if existing is not None and existing.digest == bundle.digest and _as_signed(place, bundle):
            return existing
        if problem:
            _rename_damaged(place)
        elif existing is not None:
            log.fact("replaced a bundle of the same key", tag=place.name, was=existing.digest)
            self._remove(place)
        bundle.directory.rename(place)
        sync_directory(place.parent)
        return Bundle(place, bundle.manifest, bundle.digest)

    def _set_aside(self, directory: Path) -> None:
        """Rename a damaged bundle, unless another process has replaced it in the meantime."""
        try:
            with self._locked(directory.parent):
                _, problem = _examine(directory)
                if problem:
                    aside = _rename_damaged(directory)
                    log.warning("a damaged bundle was set aside", to=aside, problem=problem)
        except (OSError, NodesideError) as exc:
            log.warning("a damaged bundle is not used", path=directory, problem=exc)

    def _remove(self, directory: Path) -> None:
        """Remove a directory so that it is never seen half removed."""
        going = directory
        if not directory.is_dir() or directory.is_symlink():
            directory.unlink()
            return
        if not directory.name.startswith(TEMPORARY_PREFIX):
            going = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=directory.parent))
            directory.rename(going)
        shutil.rmtree(going, ignore_errors=True)

    def _remove_leftovers(self, directory: Path) -> None:
        for path in _entries(directory):
            if path.name.startswith(_DAMAGED_PREFIX):
                log.detail("removed a leftover", path=path)
                self._remove(path)
            elif path.name.startswith(TEMPORARY_PREFIX):
                with _unused(path) as unused:
                    if unused:
                        log.detail("removed a leftover", path=path)
                        self._remove(path)

    def _remove_marks(self, driver: str) -> None:
        """Forget of bundles that are gone where they came from."""
        parent = self.root / driver
        there = (directory / MANIFEST for directory in self._tags(driver))
        kept = {_mark(parent, sha256_of(path)) for path in there if path.is_file()}
        for path in _entries(parent):
            if path.name.startswith(_BUILT_PREFIX) and path not in kept:
                self._remove(path)


def _mark(parent: Path, digest: str) -> Path:
    return parent / f"{_BUILT_PREFIX}{digest.removeprefix('sha256:')}"


def _as_signed(place: Path, bundle: Bundle) -> bool:
    """Whether the bundle at `place` has the signature of one with the same manifest."""
    return read_manifest(place).signature == read_manifest(bundle.directory).signature


def _examine(directory: Path) -> tuple[Bundle | None, str]:
    """The verified bundle at `directory`, or None and what is wrong ("": nothing is there)."""
    if not directory.is_dir():
        return None, ""
    try:
        bundle = read_bundle(directory)
    except (BundleError, SystemRefused) as exc:  # also a disk that cannot read it any more
        return None, str(exc)
    return bundle, ""


def _is_wanted(bundle: Bundle, key: str, driver: str) -> bool:
    manifest = bundle.manifest
    if manifest.key != key or (driver and manifest.driver != driver):
        log.fact("a bundle of this tag has another key", path=bundle.directory, key=manifest.key)
        return False
    return True


def _rename_damaged(directory: Path) -> Path:
    number = 1
    while (aside := directory.parent / f"{_DAMAGED_PREFIX}{directory.name}-{number}").exists():
        number += 1
    directory.rename(aside)
    return aside


@contextmanager
def _unused(staging: Path) -> Iterator[bool]:
    """Whether no process has locked this staging directory; none can while the block runs."""
    try:
        fd = os.open(staging, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield True
        return
    try:
        yield take_lock(fd)
    finally:
        os.close(fd)


def _directories(parent: Path) -> list[Path]:
    """The directories in `parent` that are somebody's: no temporary and no damaged ones."""
    return [path for path in _entries(parent) if not path.name.startswith(".") and path.is_dir()]


def _entries(parent: Path) -> list[Path]:
    try:
        return sorted(parent.iterdir())
    except OSError:
        return []


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _sync_tree(directory: Path) -> None:
    """Make files and directories survive a power cut, whoever wrote them."""
    sync_files(directory)
    for path in (*(p for p in directory.rglob("*") if p.is_dir()), directory):
        sync_directory(path)
