"""The files of the driver image that are copied to the host: their digest, and refusals.

Containers that get the files trust them and may run as root. That gives nobody more rights: whoever
can write to the host's copy could run as root anyway. What would be more than a file on the host is
refused: devices, pipes, files with privileges, links to what is not copied.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from nodeside.errors import ExitCode, NodesideError
from nodeside.system.files import disk_errors
from nodeside.values import frozen

_CHUNK = 1 << 20
_CAPABILITIES = "security.capability"  # capabilities(7)
_ENTRIES = 1_000_000  # of one tree


class UserspaceRefused(NodesideError):
    """An entry in `userspace.paths` that must not be copied to the host."""

    exit_code = ExitCode.REFUSED
    reason = "UserspaceRefused"


@frozen
class Entry:
    """A directory, file or link. `path` is absolute, in the image; `status` is from lstat."""

    path: str
    status: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def mode(self) -> int:
        return stat.S_IMODE(self.status.st_mode)


@frozen
class Tree:
    """The paths to copy from the image at `root`. With `is_trusted`, privileges are kept."""

    paths: Sequence[str]
    root: Path = Path("/")
    is_trusted: bool = False

    def place(self, path: str) -> Path:
        """Return where a path of the image is in this file system."""
        return self.root / path.lstrip("/")

    def entries(self) -> Iterator[Entry]:
        """Yield each entry once, sorted by name, a directory before its content.

        Raises UserspaceRefused, SystemRefused.
        """
        seen: set[str] = set()
        for path in self.paths:
            for entry in self._entries_below(path):
                if entry.path not in seen:
                    seen.add(entry.path)
                    if len(seen) > _ENTRIES:
                        raise UserspaceRefused(f"{path}: more than {_ENTRIES} files")
                    self._check_entry(entry)
                    yield entry

    def digest(self) -> str:
        """Return the sha256 of all entries: names, kinds, modes, link targets and contents."""
        total = hashlib.sha256()
        for entry in self.entries():
            place = self.place(entry.path)
            if entry.is_link:
                content = os.fsencode(place.readlink())
            elif entry.is_directory:
                content = b""
            else:
                content = self._content_digest(place)
            kind = stat.S_IFMT(entry.status.st_mode)
            parts = (os.fsencode(entry.path), f"{kind:o} {entry.mode:o}".encode(), content)
            for part in parts:
                total.update(len(part).to_bytes(8, "big") + part)
        return total.hexdigest()

    def _entries_below(self, path: str) -> Iterator[Entry]:
        place = self.place(path)
        try:
            yield Entry(posixpath.normpath(path), place.lstat())
        except OSError as error:
            raise UserspaceRefused(
                f"{path}: {error.strerror}", hint="userspace.paths are paths of the driver image"
            ) from error
        with disk_errors(place):
            if not place.is_dir() or place.is_symlink():
                return
            for directory, directories, files in os.walk(place, onerror=_raise_error):
                directories.sort()
                for name in sorted((*directories, *files)):
                    found = Path(directory) / name
                    inside = "/" + found.relative_to(self.root).as_posix()
                    yield Entry(inside, found.lstat())

    def _check_entry(self, entry: Entry) -> None:
        mode = entry.status.st_mode
        if entry.is_link:
            self._check_link(entry)
        elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UserspaceRefused(f"{entry.path}: neither a file nor a directory nor a link")
        elif not self.is_trusted and not entry.is_directory:
            what = "setuid or setgid" if mode & (stat.S_ISUID | stat.S_ISGID) else ""
            if not what and self._has_capabilities(entry.path):
                what = "a file with capabilities"
            if what:
                raise UserspaceRefused(
                    f"{entry.path} is {what}",
                    hint="remove that in the image, or allow it: userspace.privilegedFiles: true",
                )

    def _check_link(self, entry: Entry) -> None:
        """Refuse a link out of the copied paths: in a container it would lead somewhere else."""
        target = str(self.place(entry.path).readlink())
        self._refuse_steps_out_of_links(entry, target)
        absolute = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), target))
        roots = [posixpath.normpath(path) for path in self.paths]
        if not any(absolute == root or absolute.startswith(f"{root}/") for root in roots):
            raise UserspaceRefused(
                f"{entry.path} is a link to {target}, which is not in userspace.paths"
            )

    def _refuse_steps_out_of_links(self, entry: Entry, target: str) -> None:
        """Refuse `link/..`, which is the parent of where the link leads, not of the link.

        Without such a step, a target can be resolved as text, without following links.
        """
        at = "/" if target.startswith("/") else posixpath.dirname(entry.path)
        for step in target.split("/"):
            if step == ".." and self.place(at).is_symlink():
                raise UserspaceRefused(
                    f"{entry.path} is a link to {target}, which steps out of the link {at} by `..`",
                    hint="let it lead to that file without a detour",
                )
            at = posixpath.normpath(posixpath.join(at, step))

    def _has_capabilities(self, path: str) -> bool:
        with suppress(OSError):
            return _CAPABILITIES in os.listxattr(self.place(path), follow_symlinks=False)
        return False

    @staticmethod
    def _content_digest(place: Path) -> bytes:
        found = hashlib.sha256()
        with disk_errors(place), place.open("rb") as file:
            while data := file.read(_CHUNK):
                found.update(data)
        return found.digest()


def _raise_error(error: OSError) -> None:
    """Let `os.walk` fail: by itself it leaves out a directory that it cannot read."""
    raise error
