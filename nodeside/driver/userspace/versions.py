"""The versions of the files on the host: copied whole or not at all; one of them is current."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from nodeside import log
from nodeside.driver.userspace.tree import Entry, Tree
from nodeside.driver.userspace.use import is_in_use
from nodeside.protocol.node_records import read_record, remove_record, write_record
from nodeside.system.files import TEMPORARY_PREFIX, disk_errors, sync_directory
from nodeside.system.host import Host
from nodeside.system.selinux import FOR_CONTAINERS, label_tree
from nodeside.values import frozen

_CURRENT = "current"
_GRACE = 600.0  # seconds for containers that are being started when `current` changes
_CHUNK = 1 << 20


@frozen
class _CurrentSeen:
    """`/run/nodeside-locks/<driver>.current.json`: when a version was first seen to be current.

    By the clock of this boot, which nobody sets.
    """

    boot_id: str
    digest: str
    seconds: float


class Versions:
    """The versions of one driver's files. Raises NodesideError for a disk that is full or broken.

    Used under the lock of the driver only.
    """

    def __init__(self, host: Host, driver: str, now: Callable[[], float] = time.monotonic) -> None:
        self._host, self._driver, self._now = host, driver, now
        self.directory = host.userspace / driver

    @property
    def current(self) -> str:
        """Return the digest of the version that containers get, "" if there is none."""
        try:
            return str((self.directory / _CURRENT).readlink())
        except OSError:
            return ""

    def copy_version(self, tree: Tree, digest: str) -> bool:
        """Copy a tree unless its version is there; return whether it was copied."""
        goal = self.directory / digest
        if goal.is_dir():
            return False
        staging = self.directory / f"{TEMPORARY_PREFIX}{digest}"
        with disk_errors(goal):
            self.directory.mkdir(parents=True, exist_ok=True)
            for left in self.directory.glob(f"{TEMPORARY_PREFIX}*"):
                _remove_version(left)
            try:
                staging.mkdir(mode=0o755)
                for entry in tree.entries():
                    _copy_entry(tree, entry, staging)
                label_tree(staging, FOR_CONTAINERS)
                _finish_directories(tree, staging)
                staging.rename(goal)
                sync_directory(self.directory)
            except BaseException:
                _remove_version(staging)
                raise
        return True

    def make_current(self, digest: str) -> bool:
        """Let containers that start from now on get a version; return False if they did already."""
        if self.current == digest:
            return False
        link = self.directory / _CURRENT
        temporary = self.directory / f"{TEMPORARY_PREFIX}{_CURRENT}"
        with disk_errors(link):
            with suppress(FileNotFoundError):
                temporary.unlink()
            temporary.symlink_to(digest)
            if not link.is_symlink():
                # A container runtime makes directories where a mount has no source.
                _remove_version(link)
            temporary.replace(link)
            sync_directory(self.directory)
        return True

    def remove_unused(self, *, at_once: bool = False) -> None:
        """Remove the versions that nothing has any more, some time after the last change."""
        if not at_once and self.current and self._seconds_current() < _GRACE:
            return
        for version in self._other_versions(self.current):
            if not is_in_use(self._host, self._driver, version.name):
                log.fact("removing files that nothing uses", directory=version)
                with disk_errors(version):
                    _remove_version(version)

    def remove_all(self) -> None:
        """Remove all that nothing has any more: the driver leaves the node."""
        remove_record(self._seen_path)
        with disk_errors(self.directory):
            _remove_version(self.directory / _CURRENT)
            for version in self._other_versions(""):
                if is_in_use(self._host, self._driver, version.name):
                    log.warning("files stay: something on the node uses them", directory=version)
                else:
                    _remove_version(version)
            with suppress(OSError):  # not empty, or not there
                self.directory.rmdir()

    @property
    def _seen_path(self) -> Path:
        return self._host.locks / f"{self._driver}.current.json"

    def _seconds_current(self) -> float:
        """Return for how long the version is known to be current; from now on if it is not."""
        now, boot_id = self._now(), self._host.boot_id
        seen = read_record(_CurrentSeen, self._seen_path, boot_id)
        if seen is None or seen.digest != self.current:
            write_record(self._seen_path, _CurrentSeen(boot_id, self.current, now))
            return 0.0
        return now - seen.seconds

    def _other_versions(self, current: str) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            for version in sorted(self.directory.iterdir()):
                if version.is_dir() and not version.is_symlink() and version.name != current:
                    yield version


def _copy_entry(tree: Tree, entry: Entry, staging: Path) -> None:
    """Copy an entry; a directory stays writable until its content is there."""
    goal = staging / entry.path.lstrip("/")
    goal.parent.mkdir(parents=True, exist_ok=True)
    place = tree.place(entry.path)
    if entry.is_link:
        # A relative link stays in this version wherever it is looked at from.
        parent = PurePosixPath(entry.path).parent
        goal.symlink_to(os.path.relpath(parent / place.readlink(), parent))
    elif entry.is_directory:
        goal.mkdir(exist_ok=True)
    else:
        with place.open("rb") as source, goal.open("xb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
            file.flush()  # a write would remove privileges
            os.fchmod(file.fileno(), entry.mode)
            if tree.is_trusted:
                for name in os.listxattr(place):
                    if name.startswith("security.cap"):
                        os.setxattr(goal, name, os.getxattr(place, name))
            os.fsync(file.fileno())


def _finish_directories(tree: Tree, staging: Path) -> None:
    """Give directories their modes, and write them to the disk."""
    for directory, _, _ in os.walk(staging, topdown=False):
        sync_directory(Path(directory))
    for entry in tree.entries():
        if entry.is_directory:
            (staging / entry.path.lstrip("/")).chmod(entry.mode | 0o500)


def _remove_version(path: Path) -> None:
    """Remove a version or its remains; it is renamed first, so that none is half there."""
    if path.is_symlink():
        path.unlink()
        return
    if not path.exists():
        return
    doomed = path
    if not path.name.startswith(TEMPORARY_PREFIX):
        doomed = path.with_name(f"{TEMPORARY_PREFIX}gone-{path.name}")
        if doomed.exists():  # of a process that was killed
            shutil.rmtree(doomed)
        path.rename(doomed)
    shutil.rmtree(doomed)
