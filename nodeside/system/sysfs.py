"""Access to sysfs attributes and links: read, write, and expand `*`, all within sysfs.

A driver's own code serves its attributes, and may hang in a way that no signal ends. So
`read_attributes` and `write` have a deadline. `Write` is the type of a function that writes, so
that a test can imitate the kernel's reaction.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

from nodeside.errors import DeadlinePassed, SpecError, SystemRefused
from nodeside.system.child import ChildDied, ChildRaised, run_in_child
from nodeside.system.host import Host

_WRITE_SECONDS = 120.0
_READ_SECONDS = 10.0
_PATHS_LIMIT = 4096  # per pattern: links lead everywhere, so each star multiplies the paths
_READ_LIMIT = 1 << 16  # characters; non-binary attributes have at most 4 KiB

Write = Callable[[Path, str], None]


def read(path: Path) -> str | None:
    """Return the stripped content of a file; None if it cannot be read.

    It is for files that the kernel itself serves. For drivers' attributes, use `read_attributes`.
    """
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_attributes(
    *paths: Path, timeout: float = 0.0, limit: int = _READ_LIMIT
) -> tuple[str | None, ...]:
    """Read attributes that a driver serves, all in one child. Raises SystemRefused.

    At most `limit` characters of each are read, and all within `timeout` seconds (default: 10). If
    the child of an earlier read of the same attributes still hangs, they are not read again.
    """
    if not paths:
        return ()
    try:
        call = partial(_read_all, paths, limit)
        alone = f"read {paths[0]} and {len(paths) - 1} more"
        data = run_in_child(call, timeout or _READ_SECONDS, alone=alone)
    except (ChildDied, ChildRaised, DeadlinePassed, OSError) as exc:
        raise SystemRefused(
            f"reading {paths[0] if len(paths) == 1 else paths[0].parent} did not end: {exc}",
            hint="see the kernel log: dmesg | tail",
        ) from exc
    return tuple(json.loads(data))


def _read_all(paths: tuple[Path, ...], limit: int) -> bytes:
    return json.dumps([_read_some(path, limit) for path in paths]).encode()


def _read_some(path: Path, limit: int) -> str | None:
    """Read a file like `read`, but at most `limit` characters: a driver may serve endless text."""
    try:
        with path.open(errors="replace") as file:
            return file.read(limit).strip()
    except OSError:
        return None


def write(path: Path, value: str) -> None:
    """Write an attribute in one write(2), as sysfs requires. Raises SystemRefused.

    A missing file is not created: with a wrong mount, that would hide the mistake. The write may
    run a driver's code for a long time (an unbind), so it has a deadline.
    """
    try:
        run_in_child(lambda: _write_once(path, value.encode()), _WRITE_SECONDS)
    except OSError as exc:
        raise SystemRefused(
            f"cannot write {value.strip() or 'nothing'!r} to {path}: {exc.strerror}",
            hint="in a pod, mount the host's /sys read-write at /host/sys",
        ) from exc
    except (DeadlinePassed, ChildDied) as exc:
        raise SystemRefused(
            f"writing {value.strip()!r} to {path} did not end: {exc}",
            hint="see the kernel log: dmesg | tail",
        ) from exc


def _write_once(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def link_name(path: Path) -> str:
    """Return the last component of a symbolic link's target; "" if it is not a link."""
    try:
        return path.readlink().name
    except OSError:
        return ""


def list_entries(directory: Path) -> tuple[str, ...]:
    """Return the sorted entries of a directory; empty if it does not exist."""
    try:
        return tuple(sorted(path.name for path in directory.iterdir()))
    except OSError:
        return ()


def expand_pattern(host: Host, pattern: str) -> tuple[Path, ...]:
    """Return the existing paths that match a pattern of driver.yaml; `*` matches in one component.

    The pattern is relative to /sys, or begins with /sys/. Only its text is checked: links, of which
    sysfs is full, are followed. Raises SpecError for `..`, and for a pattern that matches more than
    4,096 paths.
    """
    text = pattern.removeprefix("/sys/")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.startswith("/") or ".." in parts or not parts:
        raise SpecError(f"{pattern}: expected a path below /sys, without ..")
    paths = [host.sys]
    for part in parts:
        paths = list(
            islice(
                (path / name for path in paths for name in _match_component(path, part)),
                _PATHS_LIMIT + 1,
            )
        )
        if len(paths) > _PATHS_LIMIT:
            raise SpecError(
                f"{pattern}: matches more than {_PATHS_LIMIT} paths below /sys",
                hint="write names instead of some of the stars, or begin with /sys/class",
            )
    return tuple(path for path in paths if os.path.exists(path))  # noqa: PTH110 - no error


def _match_component(directory: Path, part: str) -> tuple[str, ...]:
    if "*" not in part:
        return (part,)
    literal = part.replace("[", "[[]").replace("?", "[?]")
    return tuple(name for name in list_entries(directory) if fnmatch.fnmatchcase(name, literal))
