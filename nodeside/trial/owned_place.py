"""A directory of a user in which root writes: opened once, and written to as its owner.

A trial runs as root, over directories of anybody. Whoever owns one can put links in the place of
files and directories while a build takes minutes. So the directory is opened before that, and all
that is written later is written by a child process with the owner's rights: it can do nothing there
that the owner could not do. A directory that somebody else could exchange is refused.
"""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from nodeside.system.child import run_in_child
from nodeside.system.files import disk_errors, publish_bytes
from nodeside.system.owned_directory import (
    OwnedDirectory,
    cannot_become_error,
    group_of,
    open_directory,
)
from nodeside.values import frozen

_SECONDS = 600.0
_UNPACKED = ".nodeside-unpacked"


@frozen
class OwnedPlace:
    """A directory as the user named it (`path`), and what of it existed when it was opened."""

    path: Path
    found: OwnedDirectory

    def has_name(self, name: str) -> bool:
        """Return whether a name is in the directory, if only as a link to nowhere."""
        if self.found.rest:
            return False
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=self.found.descriptor, follow_symlinks=False)
            return True
        return False

    def write_files(self, files: Mapping[str, bytes], tree: Path | None = None) -> None:
        """Write files, each by rename, and the content of `tree` as `src` if that is not there.

        A failure leaves no file that was not there before. Raises NoSpace, SystemRefused.
        """
        with TemporaryFile() as packed:
            if tree is not None:
                with tarfile.open(fileobj=packed, mode="w") as archive:
                    archive.add(tree, arcname=".")
                packed.seek(0)
            call = self._make_writer(files, packed if tree is not None else None)
            with disk_errors(self.path):
                run_in_child(call, _SECONDS, keep=(self.found.descriptor, packed.fileno()))

    def _make_writer(
        self, files: Mapping[str, bytes], packed: IO[bytes] | None
    ) -> Callable[[], None]:
        def write() -> None:
            _become_user(self.found.owner)
            os.umask(0o022)
            directory = self.found.make()
            os.fchdir(directory)
            if packed is not None and not os.path.lexists("src"):
                if os.path.lexists(_UNPACKED):  # of one that was killed
                    shutil.rmtree(_UNPACKED)
                _unpack_tree(packed, _UNPACKED)
                os.fchdir(directory)
                Path(_UNPACKED).rename("src")
            new = [name for name in files if not os.path.lexists(name)]
            try:
                for name, data in files.items():
                    publish_bytes(Path(name), data)
            except BaseException:  # all of them, or none: the next run would find some there
                for name in new:
                    Path(name).unlink(missing_ok=True)
                raise

        return write


@contextmanager
def open_place(path: Path) -> Iterator[OwnedPlace]:
    """Open a directory, or the one that it will be made in. Raises UsageError, SystemRefused."""
    with open_directory(path) as found:
        yield OwnedPlace(path, found)


def _unpack_tree(packed: IO[bytes], to: str) -> None:
    """Unpack an archive that we have made, of a tree without anything but files and links.

    It goes into a new directory of ours, wherever that is moved to. Nobody else can write to it.
    """
    os.mkdir(to)  # noqa: PTH102 - it must be new
    fresh = os.open(to, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if os.fstat(fresh).st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "the directory was exchanged", to)
    os.fchdir(fresh)
    with tarfile.open(fileobj=packed) as archive:
        if hasattr(tarfile, "tar_filter"):  # since Python 3.11.4; Debian 12 has 3.11.2
            archive.extractall(filter="tar")
        else:
            archive.extractall()  # noqa: S202  # ours


def _become_user(user: int) -> None:
    """Take the rights of a user, for good. Root stays root in directories of its own."""
    if os.geteuid() != 0 or user == 0:
        return
    try:
        os.setgroups([])
        os.setgid(group_of(user))
        os.setuid(user)
    except OSError as error:
        raise cannot_become_error(user, error) from None
