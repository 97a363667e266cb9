"""Installs firmware where the kernel looks for it: one directory per node for all drivers.

The kernel has one extra search path, /sys/module/firmware_class/parameters/path
(Documentation/driver-api/firmware/fw_search_path.rst). If it is empty, it is set to our directory,
and the last driver to leave clears it. Directory and search path last until reboot, like /run.

    <host>/run/nodeside/
      firmware/...                  all drivers  files under the names that drivers request
    <host>/run/nodeside-locks/                   not mounted by consumers, who could lease a record
      firmware-owners/<driver>.json one driver   which of them it needs, with their sha256
      firmware.lock                              held during a change
    <host>/var/lib/nodeside/
      firmware-owners/<driver>.json one driver   the same for a directory of somebody else

Somebody else may have set the search path: the kernel's command line, Kernel Module Management, the
GPU Operator. It stays as it is, and our files go below it. A pod has no mount of that directory,
and reaches it by the root of the host's init. These records outlive a reboot, as that directory
may. A file there that we did not place is never written or removed. If the path is changed later,
the next look of the driver moves its files (`follow`).

A crash during a change leaves an owner that lists a missing file, or a file that no owner lists.
The next install repairs both; in a directory of somebody else, only the first: there, a file that
no owner lists is not ours. Called before a load, after an unload, and at each look.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Any

from nodeside import log
from nodeside.driver.node.node_lock import node_lock
from nodeside.errors import ExitCode, NodesideError, SystemRefused
from nodeside.protocol.node_records import read_own
from nodeside.protocol.records import publish
from nodeside.system import sysfs
from nodeside.system.clock import Clock
from nodeside.system.digests import sha256_of
from nodeside.system.files import (
    TEMPORARY_PREFIX,
    LeasedFile,
    UntrustedFile,
    disk_errors,
    open_untrusted,
    publish_bytes,
)
from nodeside.system.host import Host
from nodeside.values import frozen

_LOCK_SECONDS = 10.0
_FILE_LIMIT = 1 << 30  # bytes; the largest firmware in linux-firmware is below 100 MB
_CHUNK = 1 << 20  # bytes read at a time
_ENTRIES_LIMIT = 20_000  # of a firmware directory; linux-firmware has about 5,000
_EMPTY = "\0"  # an empty write never reaches the kernel, and a newline would be stored

_LINKS = 255  # names and links of a path
# Who sets the search path to these, by their documentation.
_SETTERS = {
    "/var/lib/firmware": ", the default of Kernel Module Management",
    "/run/nvidia/driver/lib/firmware": ", by the GPU Operator's driver container",
}


class FirmwareRefused(NodesideError):
    """Firmware that cannot be put where the kernel looks for it."""

    exit_code = ExitCode.REFUSED
    reason = "FirmwareRefused"


@frozen
class _Place:
    """A directory that the kernel searches. `path` is the kernel's name of it.

    `files` is where this process reaches it, `owners` has the records of those who need files.
    """

    path: str
    files: Path
    owners: Path
    is_ours: bool


@frozen
class FirmwareDirectory:
    """The node's firmware files, and the record of which driver needs which file."""

    host: Host
    clock: Clock = field(default_factory=Clock)
    write: sysfs.Write = field(default=sysfs.write)

    @property
    def files(self) -> Path:
        return self.host.run / "firmware"

    @property
    def owners(self) -> Path:
        return self.host.locks / "firmware-owners"

    @property
    def owners_elsewhere(self) -> Path:
        return self.host.cache.parent / "firmware-owners"

    @property
    def search_path(self) -> Path:
        """The kernel's sysfs attribute for the extra search path."""
        return self.host.sys_module / "firmware_class" / "parameters" / "path"

    @property
    def as_kernel_sees_it(self) -> str:
        """The directory's path in the host's own root, where the kernel opens it."""
        return "/" + str(self.files.relative_to(self.host.root))

    def foreign_path(self) -> str:
        """Return the search path that somebody else has set, and who, in words; "" if none."""
        current = self._current_path()
        if current in (None, "", self.as_kernel_sees_it):
            return ""
        return f"{current}{self._setter_of(current or '')}"

    def check_files(self, directory: Path, driver: str) -> None:
        """Check what can be checked without a change to the node, before modules are unloaded.

        Raises FirmwareRefused.
        """
        sources = _map_files(directory)
        place = self._find_place()
        if not place.is_ours or set(self._list_drivers(place)) - {driver}:
            digests = {name: _file_digest(path) for name, path in sources.items()}
            self._refuse_other_content(place, driver, digests)

    def install_files(self, directory: Path, driver: str) -> tuple[str, ...]:
        """Install every file below `directory`. Returns their names.

        Raises FirmwareRefused, SystemRefused, NoSpace, Locked.
        """
        sources = _map_files(directory)
        with self._hold_lock():
            place = self._find_place()
            digests = {name: _file_digest(path) for name, path in sources.items()}
            theirs = self._refuse_other_content(place, driver, digests)
            previous = self._needed_by(place, driver)
            ours = {name: digest for name, digest in digests.items() if name not in theirs}
            self._leave_places(driver, but=place)
            with disk_errors(place.owners):
                place.owners.mkdir(parents=True, exist_ok=True)
                place.files.mkdir(parents=True, exist_ok=True)
            publish(place.owners / f"{driver}.json", {"directory": place.path, "files": ours})
            for name in ours:
                self._place_file(sources[name], self._reach_file(place, name), digests[name])
            self._drop_files(place, set(previous) - set(ours))
            if self._current_path() == "":
                self.write(self.search_path, self.as_kernel_sees_it)
        log.fact("firmware installed", driver=driver, files=len(digests), directory=place.path)
        return tuple(digests)

    def follow_search_path(self, directory: Path, driver: str) -> bool:
        """Install the files again if the search path has changed since they were installed.

        Returns whether it had changed. Raises what `install_files` raises.
        """
        current = self._current_path()
        if current is None:
            return False
        ours = current == self.as_kernel_sees_it
        owners = self.owners if ours else self.owners_elsewhere
        record = _read_owner(owners, driver)
        if record and (ours or record.get("directory") == current):
            return False
        log.fact("the firmware search path is another one", driver=driver, path=current or "none")
        self.install_files(directory, driver)
        return True

    def remove_files(self, driver: str) -> None:
        """Remove files that only this driver needs. The last driver clears our search path."""
        if not (self.owners.is_dir() or self.owners_elsewhere.is_dir()):
            return
        with self._hold_lock():
            self._leave_places(driver)
            ours = self._own_place()
            if not self._list_drivers(ours) and self._current_path() == self.as_kernel_sees_it:
                self.write(self.search_path, _EMPTY)
        log.fact("firmware removed", driver=driver)

    def _own_place(self) -> _Place:
        return _Place(self.as_kernel_sees_it, self.files, self.owners, is_ours=True)

    def _place_elsewhere(self, path: str) -> _Place:
        """Return the place of a search path of somebody else. Raises FirmwareRefused."""
        return _Place(path, _reach_directory(self.host, path), self.owners_elsewhere, is_ours=False)

    def _find_place(self) -> _Place:
        """Return where the kernel searches, or will once we have set it. Raises FirmwareRefused."""
        current = self._current_path()
        if current is None:
            raise FirmwareRefused(
                f"cannot read {self.search_path}",
                hint="mount the host's /sys at /host/sys; a kernel without a firmware loader "
                "has no such file",
            )
        if current in ("", self.as_kernel_sees_it):
            return self._own_place()
        try:
            place = self._place_elsewhere(current)
            why = "" if _may_write(place.files) else "it cannot be written"
        except FirmwareRefused as error:
            why = str(error)
        if why:
            raise FirmwareRefused(
                f"the kernel's firmware search path is taken: {current}"
                f"{self._setter_of(current)}, and no file can be put there: {why}; expected none, "
                f"{self.as_kernel_sees_it}, or a directory that can be written",
                hint=f"put the firmware below {current}, or boot without firmware_class.path",
            )
        return place

    def _setter_of(self, path: str) -> str:
        """Return who has set the search path, as far as that is known, as a clause or ""."""
        line = sysfs.read(self.host.proc / "cmdline") or ""
        if f"firmware_class.path={path}" in line.replace('"', "").split():
            return ", by the kernel's command line"
        return _SETTERS.get(path.rstrip("/"), "")

    def _current_path(self) -> str | None:
        """Return the current search path; None if this kernel has no such attribute."""
        text = sysfs.read(self.search_path)
        return None if text is None else text.strip("\0 \n")

    def _refuse_other_content(
        self, place: _Place, driver: str, digests: Mapping[str, str]
    ) -> frozenset[str]:
        """Raise FirmwareRefused if one of the names is used for different content.

        Returns the names of files with the same content that are not ours.
        """
        ours = set(self._needed_by(place, driver))
        for other in self._list_drivers(place):
            if other == driver:
                continue
            theirs = self._needed_by(place, other)
            ours.update(theirs)
            for name in sorted(set(theirs) & set(digests)):
                if theirs[name] != digests[name]:
                    raise FirmwareRefused(
                        f"the driver {other} has installed a different firmware file {name}",
                        hint="unload one of the two drivers: nodeside driver unload, with the "
                        f"driver.yaml of {other}",
                    )
        if place.is_ours:
            return frozenset()
        others = set(digests) - ours
        foreign = {name for name in others if os.path.lexists(self._reach_file(place, name))}
        for name in sorted(foreign):
            if _installed_digest(self._reach_file(place, name)) != digests[name]:
                raise FirmwareRefused(
                    f"{place.path}/{name} is there with other content, and is not nodeside's",
                    hint="remove that file from the node, or take it out of firmware.path",
                )
        for name in sorted(set(digests) - foreign):
            if not _may_write(self._reach_file(place, name).parent):
                raise FirmwareRefused(
                    f"{place.path}/{name} cannot be written, by what its directory leads to",
                    hint=f"ls -ld {place.path}/{PurePosixPath(name).parent}, on the node",
                )
        return frozenset(foreign)

    def _reach_file(self, place: _Place, name: str) -> Path:
        """Return where this process reaches a file; a link on the way is the host's.

        Raises FirmwareRefused.
        """
        if place.is_ours:
            return place.files / name
        path = PurePosixPath(name)
        return _reach_directory(self.host, f"{place.path}/{path.parent}") / path.name

    def _list_drivers(self, place: _Place) -> tuple[str, ...]:
        names = [
            name.removesuffix(".json")
            for name in sysfs.list_entries(place.owners)
            if not name.startswith(TEMPORARY_PREFIX)
        ]
        return tuple(name for name in names if self._is_at(place, name))

    def _is_at(self, place: _Place, driver: str) -> bool:
        """Return whether a driver has files in this place."""
        record = _read_owner(place.owners, driver)
        return place.is_ours or record.get("directory") == place.path

    def _needed_by(self, place: _Place, driver: str) -> dict[str, str]:
        record = _read_owner(place.owners, driver)
        files = record.get("files")
        if not isinstance(files, dict) or not self._is_at(place, driver):
            return {}
        return {name: digest for name, digest in files.items() if _is_below(name)}

    def _place_file(self, source: Path, target: Path, digest: str) -> None:
        if _installed_digest(target) == digest:
            return
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            data = source.read_bytes()
        publish_bytes(target, data)

    def _leave_places(self, driver: str, *, but: _Place | None = None) -> None:
        """Remove what a driver has in other places than `but`."""
        places = [self._own_place()]
        path = _read_owner(self.owners_elsewhere, driver).get("directory")
        if isinstance(path, str):
            try:
                places.append(self._place_elsewhere(path))
            except FirmwareRefused as error:
                log.warning("firmware files stay behind", driver=driver, directory=path, why=error)
        for place in places:
            if but is not None and place.path == but.path:
                continue
            previous = self._needed_by(place, driver)
            with disk_errors(place.owners):
                (place.owners / f"{driver}.json").unlink(missing_ok=True)
            self._drop_files(place, set(previous))

    def _drop_files(self, place: _Place, names: set[str]) -> None:
        """Remove files that no driver needs any more, and directories that become empty."""
        needed = {
            name for driver in self._list_drivers(place) for name in self._needed_by(place, driver)
        }
        top = self.host.run if place.is_ours else place.files
        for name in sorted(names - needed):
            path = self._reach_file(place, name)
            with disk_errors(path):
                path.unlink(missing_ok=True)
            for parent in path.parents:
                if parent == top or not parent.is_relative_to(top):
                    break
                with suppress(OSError):  # not empty
                    parent.rmdir()

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the firmware lock. A driver's own lock does not exclude other drivers."""
        with node_lock(self.host, "firmware", "firmware", timeout=_LOCK_SECONDS, clock=self.clock):
            yield


def _read_owner(owners: Path, driver: str) -> dict[str, Any]:
    """Return a record; {} for one that cannot be read, whose files then count as nobody's."""
    path = owners / f"{driver}.json"
    try:
        return read_own(path) or {}
    except LeasedFile:
        raise
    except UntrustedFile as error:
        log.warning("a record of firmware counts as absent", why=error, hint=f"rm {path}")
        return {}


def _reach_directory(host: Host, path: str) -> Path:
    """Return where this process reaches a directory of the host, which need not exist yet.

    A link is followed in the host's root, as the kernel does. Raises FirmwareRefused.
    """
    root = host.root if host.root == Path("/") else host.proc / "1" / "root"
    pending = list(reversed(PurePosixPath("/" + path.lstrip("/")).parts))
    if not path.startswith("/") or pending.pop() != "/" or ".." in pending:
        raise FirmwareRefused(f"{path} is no absolute path")
    if not root.is_dir():  # not mounted, or an LSM denies it
        raise FirmwareRefused(f"the host's root cannot be reached by {root}")
    found = root
    for _ in range(_LINKS):
        if not pending:
            return found
        name = pending.pop()
        if name == "..":
            found = found if found == root else found.parent
            continue
        step = found / name
        try:
            parts = PurePosixPath(step.readlink()).parts
        except (OSError, ValueError):  # ValueError: a NUL in a name
            found = step
            continue
        if parts[:1] == ("/",):
            found, parts = root, parts[1:]
        pending += reversed(parts)
    raise FirmwareRefused(f"{path} has too many links")


def _may_write(directory: Path) -> bool:
    """Return whether files can be made in a directory, or it can be made."""
    while not os.path.lexists(directory) and directory != directory.parent:
        directory = directory.parent
    return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)


def _map_files(directory: Path) -> dict[str, Path]:
    """Map the names the kernel will request to files below a directory. Links must stay inside.

    Raises FirmwareRefused.
    """
    if not directory.is_dir():
        raise FirmwareRefused(
            f"no firmware directory {directory}", hint="see firmware.path in driver.yaml"
        )
    root = _resolve_file(directory)
    files: dict[str, Path] = {}
    pending = [(directory, frozenset({root}))]
    for _ in range(_ENTRIES_LIMIT):
        if not pending:
            return dict(sorted(files.items()))
        path, above = pending.pop()
        real = _resolve_file(path)
        if not real.is_relative_to(root):
            raise FirmwareRefused(f"{path} is a link that leads out of {directory}")
        if real.is_file():
            files[str(path.relative_to(directory))] = real
        elif not real.is_dir():
            raise FirmwareRefused(f"{path}: expected a regular file")
        elif path is directory or real not in above:  # else a link to where it is
            pending += [(below, above | {real}) for below in _list_directory(path)]
    raise FirmwareRefused(f"{directory} has more than {_ENTRIES_LIMIT} entries, links followed")


def _list_directory(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError as exc:
        raise FirmwareRefused(f"cannot read {directory}: {exc.strerror}") from exc


def _resolve_file(path: Path) -> Path:
    """Return the path of the file that a path leads to. Raises FirmwareRefused."""
    try:
        return path.resolve(strict=True)
    except FileNotFoundError:
        raise FirmwareRefused(f"{path} is a link to nothing") from None
    except RuntimeError as exc:  # Python before 3.13; later versions raise OSError
        raise FirmwareRefused(f"{path} is a link that leads to itself") from exc
    except OSError as exc:
        raise FirmwareRefused(f"cannot follow {path}: {exc.strerror}") from exc


def _is_below(name: str) -> bool:
    """Return whether a name read from a record stays inside its directory."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


def _installed_digest(path: Path) -> str:
    """Return the digest of an installed file, "" if it has to be written.

    A consumer can hold a lease on it, which would delay each open by up to 45 s. The file that
    replaces it has none.
    """
    try:
        with open_untrusted(path, limit=_FILE_LIMIT) as file:
            digest = hashlib.sha256()
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            return digest.hexdigest()
    except (OSError, UntrustedFile):
        return ""


def _file_digest(path: Path) -> str:
    try:
        if path.stat().st_size > _FILE_LIMIT:
            raise FirmwareRefused(f"{path} is larger than {_FILE_LIMIT} bytes")
    except OSError as exc:
        raise SystemRefused(f"cannot read {path}: {exc.strerror}") from exc
    return sha256_of(path)
