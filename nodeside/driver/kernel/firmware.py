"""Installs firmware where the kernel looks for it: one directory per node for all drivers.

The kernel has one extra search path, /sys/module/firmware_class/parameters/path
(Documentation/driver-api/firmware/fw_search_path.rst). It is set only if it is empty or ours, and
the last driver to leave clears it. The directory and the search path last until reboot, like /run.

    <host>/run/nodeside/
      firmware/...                  all drivers  files under the names that drivers request
      firmware-owners/<driver>.json one driver   which of them it needs, with their sha256
    <host>/run/nodeside-locks/
      firmware.lock                              held during a change

A crash during a change leaves an owner that lists a missing file, or a file that no owner lists.
The next install repairs both. Called before a load and after an unload.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path, PurePosixPath

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


class FirmwareRefused(NodesideError):
    """Firmware that cannot be put where the kernel looks for it."""

    exit_code = ExitCode.REFUSED
    reason = "FirmwareRefused"


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
        return self.host.run / "firmware-owners"

    @property
    def search_path(self) -> Path:
        """The kernel's sysfs attribute for the extra search path."""
        return self.host.sys_module / "firmware_class" / "parameters" / "path"

    @property
    def as_kernel_sees_it(self) -> str:
        """The directory's path in the host's own root, where the kernel opens it."""
        return "/" + str(self.files.relative_to(self.host.root))

    def check(self, directory: Path, driver: str) -> None:
        """Check what can be checked without a change to the node, before modules are unloaded.

        Raises FirmwareRefused.
        """
        sources = _map_files(directory)
        self._refuse_foreign_path()
        if set(self._list_drivers()) - {driver}:
            digests = {name: _file_digest(path) for name, path in sources.items()}
            self._refuse_other_content(driver, digests)

    def install(self, directory: Path, driver: str) -> tuple[str, ...]:
        """Install every file below `directory`. Returns their names.

        Raises FirmwareRefused, SystemRefused, NoSpace, Locked.
        """
        sources = _map_files(directory)
        with self._hold_lock():
            self._refuse_foreign_path()
            digests = {name: _file_digest(path) for name, path in sources.items()}
            self._refuse_other_content(driver, digests)
            previous = self._needed_by(driver)
            publish(self.owners / f"{driver}.json", {"files": digests})
            for name, path in sources.items():
                self._place_file(path, self.files / name, digests[name])
            self._drop_files(set(previous) - set(digests))
            if self._current_path() == "":
                self.write(self.search_path, self.as_kernel_sees_it)
        log.fact("firmware installed", driver=driver, files=len(digests))
        return tuple(digests)

    def remove(self, driver: str) -> None:
        """Remove files that only this driver needs. The last driver clears the search path."""
        if not self.owners.is_dir():
            return
        with self._hold_lock():
            previous = self._needed_by(driver)
            with suppress(FileNotFoundError), disk_errors(self.owners):
                (self.owners / f"{driver}.json").unlink(missing_ok=True)
            self._drop_files(set(previous))
            if not self._list_drivers() and self._current_path() == self.as_kernel_sees_it:
                self.write(self.search_path, _EMPTY)
        log.fact("firmware removed", driver=driver)

    def _current_path(self) -> str | None:
        """Return the current search path; None if this kernel has no such attribute."""
        text = sysfs.read(self.search_path)
        return None if text is None else text.strip("\0 \n")

    def _refuse_foreign_path(self) -> None:
        current = self._current_path()
        if current is None:
            raise FirmwareRefused(
                f"cannot read {self.search_path}",
                hint="mount the host's /sys at /host/sys; a kernel without a firmware loader "
                "has no such file",
            )
        if current not in ("", self.as_kernel_sees_it):
            raise FirmwareRefused(
                f"the kernel's firmware search path is taken: {current}; "
                f"expected none, or {self.as_kernel_sees_it}",
                hint=f"put the firmware below {current}, or boot without firmware_class.path",
            )

    def _refuse_other_content(self, driver: str, digests: Mapping[str, str]) -> None:
        """Raise FirmwareRefused if another driver uses one of the names for different content."""
        for other in self._list_drivers():
            if other == driver:
                continue
            theirs = self._needed_by(other)
            for name in sorted(set(theirs) & set(digests)):
                if theirs[name] != digests[name]:
                    raise FirmwareRefused(
                        f"the driver {other} has installed a different firmware file {name}",
                        hint="unload one of the two drivers: nodeside driver unload, with the "
                        f"driver.yaml of {other}",
                    )

    def _list_drivers(self) -> tuple[str, ...]:
        names = sysfs.names(self.owners)
        return tuple(
            name.removesuffix(".json") for name in names if not name.startswith(TEMPORARY_PREFIX)
        )

    def _needed_by(self, driver: str) -> dict[str, str]:
        record = read_own(self.owners / f"{driver}.json") or {}
        files = record.get("files")
        if not isinstance(files, dict):
            return {}
        return {name: digest for name, digest in files.items() if _is_below(name)}

    def _place_file(self, source: Path, target: Path, digest: str) -> None:
        if _installed_digest(target) == digest:
            return
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            data = source.read_bytes()
        publish_bytes(target, data)

    def _drop_files(self, names: set[str]) -> None:
        """Remove files that no driver needs any more, and directories that become empty."""
        needed = {name for driver in self._list_drivers() for name in self._needed_by(driver)}
        for name in sorted(names - needed):
            path = self.files / name
            with disk_errors(path):
                path.unlink(missing_ok=True)
            for parent in path.parents:
                if parent == self.host.run:
                    break
                with suppress(OSError):  # not empty
                    parent.rmdir()

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the firmware lock. A driver's own lock does not exclude other drivers."""
        with disk_errors(self.host.run):
            self.owners.mkdir(parents=True, exist_ok=True)
            self.files.mkdir(parents=True, exist_ok=True)
        with node_lock(self.host, "firmware", "firmware", timeout=_LOCK_SECONDS, clock=self.clock):
            yield


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
