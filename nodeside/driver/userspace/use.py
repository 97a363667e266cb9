"""Finds out whether a mount or a process on the node still uses a version of the files.

A container uses the files through mounts, whose root in their file system is below the version's
directory. A process of the host has its program, libraries, open files or working directory there.
If something cannot be read, the version counts as in use, and the log names the process. A child
process looks, since reading about a process that is stuck in the kernel may never end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from nodeside import log
from nodeside.errors import NodesideError
from nodeside.system.child import ChildDied, ChildRaised, run_in_child
from nodeside.system.host import Host

_SECONDS = 10.0


def is_in_use(host: Host, driver: str, version: str) -> bool:
    """Return whether a mount or a process uses files of a version. Takes at most 10 s."""
    try:
        found = run_in_child(
            lambda: _find_user(host, driver, version).encode(), _SECONDS, alone="look for use"
        )
    except (ChildDied, ChildRaised, NodesideError, OSError) as problem:
        log.warning("cannot see who uses files of a driver; they stay", why=problem)
        return True
    if found:
        log.fact("files of a driver stay", driver=driver, version=version, why=found.decode())
    return bool(found)


def _find_user(host: Host, driver: str, version: str) -> str:
    """Return which process has the version, or cannot be read; "" if none."""
    # A mount's root is relative to its file system, which may be mounted at /var or /var/lib.
    below = re.compile(re.escape(f"/userspace/{driver}/{version}") + r"(?:[/\s]|$)").search
    seen: set[str] = set()
    for process in _list_processes(host):
        try:
            if _has_mapped_or_open(process, below, seen):
                return f"process {process.name} has them"
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended, or is a kernel thread
        except OSError as error:
            return f"process {process.name} may have them, and cannot be read: {error.strerror}"
    return ""


def _has_mapped_or_open(process: Path, below: Callable[[str], object], seen: set[str]) -> bool:
    """Return whether a process or its mounts are below a directory. Raises OSError."""
    namespace = str((process / "ns/mnt").readlink())
    if namespace not in seen:
        seen.add(namespace)
        if any(below(line) for line in _read_lines(process / "mountinfo")):
            return True
    return (
        any(below(str((process / name).readlink())) for name in ("exe", "cwd"))
        or any(below(line) for line in _read_lines(process / "maps"))
        or any(below(str(each.readlink())) for each in (process / "fd").iterdir())
    )


def _list_processes(host: Host) -> Iterator[Path]:
    return (each for each in host.proc.iterdir() if each.name.isdecimal())


def _read_lines(path: Path) -> Iterator[str]:
    with path.open(errors="replace") as file:
        yield from file
