"""The trial's cache, outside the checkout: things that are expensive to make and reusable.

    <cache>/                $XDG_CACHE_HOME/nodeside/trial, or NODESIDE_TRIAL_CACHE; all of it ours;
                            /var/cache/nodeside/trial for root if ~/.cache is another user's
      lock                  shared while a trial runs, exclusive while the cache is removed; stays
      consoles/             console output of the latest machines
      <kind>/<name>/        one complete entry; it appears by rename
      <kind>/.lock-<name>   held while the entry is made, so that two trials make it once
      <kind>/.tmp-<name>    the entry in the making; a crash leaves it, the next maker removes it

A name carries a digest of the recipe, so a changed recipe makes a new entry.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeside.errors import NodesideError, NoSpace
from nodeside.system.file_lock import take_lock
from nodeside.system.files import TEMPORARY_PREFIX, disk_errors
from nodeside.system.owned_directory import require_trusted
from nodeside.trial.errors import TrialError

MIB = 1 << 20
_ROOTS = Path("/var/cache/nodeside/trial")
_LOCK = "lock"
_REMOVING = 120.0  # seconds; removing the largest caches takes ten
_MAKING = 7200.0  # seconds; a root file system over a slow connection may take half an hour

Maker = Callable[[Path], None]  # fills a new directory


def digest_of(recipe: str | bytes) -> str:
    """Return a short digest of a recipe, for the name of what it makes."""
    data = recipe.encode() if isinstance(recipe, str) else recipe
    return hashlib.sha256(data).hexdigest()[:12]


def default_directory() -> Path:
    """Return the directory of the cache, from the environment or the default."""
    if directory := os.environ.get("NODESIDE_TRIAL_CACHE"):
        return Path(directory).absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "nodeside" / "trial"
    return _ROOTS if home_refusal_message() else _home_cache()


def home_refusal_message() -> str:
    """Return why root does not use the cache at home, "" if it may.

    In a container of a CI job, HOME may be another user's.
    """
    try:
        _require_trusted(_home_cache())
    except NodesideError as error:
        return str(error)
    return ""


def _home_cache() -> Path:
    return Path.home().absolute() / ".cache" / "nodeside" / "trial"


class TrialCache:
    """The cache as a context manager. It cannot be removed while it is in use."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()
        self._lock: int | None = None

    def __enter__(self) -> TrialCache:
        with disk_errors(self.directory):
            _require_trusted(self.directory)
            self.directory.mkdir(parents=True, exist_ok=True)
            _require_trusted(self.directory)  # nobody has made it in /tmp before us
            _require_ours(self.directory)
            self._lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        if not take_lock(self._lock, within=_REMOVING, shared=True):
            os.close(self._lock)
            raise TrialError(
                f"{self.directory} is still being removed after {_REMOVING:g} s",
                hint=f"find the process: fuser -v {self.directory / _LOCK}",
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._lock is not None
        os.close(self._lock)
        self._lock = None

    def path(self, kind: str, name: str) -> Path:
        return self.directory / kind / name

    def make(self, kind: str, name: str, maker: Maker, *, needs_mib: int = 64) -> Path:
        """Return the directory `<kind>/<name>`. If it does not exist, `maker` fills a new one."""
        entry = self.path(kind, name)
        if entry.exists():
            return entry
        with disk_errors(entry):
            entry.parent.mkdir(parents=True, exist_ok=True)
        with self.hold_lock(kind, name):
            if not entry.exists():
                self._make_entry(entry, maker, needs_mib)
        return entry

    @contextmanager
    def hold_lock(self, kind: str, name: str) -> Iterator[None]:
        """Hold the exclusive lock of one entry while the block runs. Raises TrialError."""
        lock = self.directory / kind / f".lock-{name}"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with open(lock, "wb") as file:
            if not take_lock(file.fileno(), within=_MAKING):
                raise TrialError(
                    f"another trial has been making {kind}/{name} for {_MAKING:g} s",
                    hint=f"find the process: fuser -v {lock}",
                )
            yield

    def require_space(self, needs_mib: int, what: str) -> None:
        """Raise NoSpace if the disk is too full, before an hour of work shows it."""
        free = shutil.disk_usage(self.directory).free // MIB
        if free < needs_mib:
            raise NoSpace(
                f"{self.directory} has {free} MiB free, {what} needs {needs_mib} MiB",
                hint="free some space, or name a new directory on a larger disk: "
                "NODESIDE_TRIAL_CACHE",
            )

    def _make_entry(self, entry: Path, maker: Maker, needs_mib: int) -> None:
        self.require_space(needs_mib, f"{entry.parent.name}/{entry.name}")
        unfinished = entry.parent / f"{TEMPORARY_PREFIX}{entry.name}"
        remove_tree(unfinished)
        try:
            unfinished.mkdir()
            maker(unfinished)
            unfinished.replace(entry)
        except OSError as exc:
            remove_tree(unfinished)
            with disk_errors(entry):
                raise exc
        except BaseException as exc:
            remove_tree(unfinished)
            if isinstance(exc, NodesideError) and "No space left on device" in str(exc):
                raise NoSpace(
                    f"no space left making {entry}", hint=f"free some space: df -h {entry.parent}"
                ) from exc
            raise


def _require_trusted(directory: Path) -> None:
    require_trusted(
        directory,
        "the trial's cache",
        "name a directory of root, or in the home of who calls sudo: NODESIDE_TRIAL_CACHE",
    )


def _require_ours(directory: Path) -> None:
    """Raise TrialError for a directory with files of others: a removal would take them along."""
    names = [path.name for path in directory.iterdir()]
    if names and _LOCK not in names:
        raise TrialError(
            f"{directory} cannot be the trial's cache, since it is not empty and was none before",
            hint=f"name a directory of its own: NODESIDE_TRIAL_CACHE={directory}/nodeside-trial",
        )


def remove_cache(directory: Path | None = None) -> Path:
    """Remove all but the lock and return the directory.

    Raises TrialError while a trial uses it, and for a directory with files of others. Raises
    UsageError for one that other users can exchange.
    """
    directory = directory or default_directory()
    _require_trusted(directory)
    if directory.is_dir():
        _require_ours(directory)
    if not (directory / _LOCK).is_file():
        return directory
    with open(directory / _LOCK, "rb+") as file:
        if not take_lock(file.fileno()):
            raise TrialError(
                f"{directory} is in use by another `nodeside try`", hint="wait until it has ended"
            )
        for path in directory.iterdir():
            if path.name != _LOCK:  # others may wait for it
                remove_tree(path)
    return directory


def remove_tree(path: Path) -> None:
    """Remove a directory that may hold read-only directories, or a file; silent if it is gone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
