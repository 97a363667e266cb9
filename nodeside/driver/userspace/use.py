"""Finds out whether a mount or a process on the node still uses a version of the files.

A container uses the files through mounts, whose root in their file system is below the version's
directory. A process of the host has its program, libraries, open files or working directory there.
If something cannot be read, the version counts as in use. A child process looks, since reading
about a process that is stuck in the kernel may never end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nodeside import log
from nodeside.errors import NodesideError
from nodeside.system.child import ChildDied, ChildRaised, run_in_child
from nodeside.system.host import Host

_SECONDS = 10.0
_LINES = 1 << 16  # read of a process's table of mounts or mappings


def in_use(host: Host, driver: str, version: str) -> bool:
    """Return whether a mount or a process uses files of a version. Takes at most 10 s."""
    try:
        found = run_in_child(
            lambda: b"1" if _in_use(host, driver, version) else b"0", _SECONDS, alone="look for use"
        )
    except (ChildDied, ChildRaised, NodesideError, OSError) as problem:
        log.warning("cannot see who uses files of a driver; they stay", problem=problem)
        return True
    return found != b"0"


def _in_use(host: Host, driver: str, version: str) -> bool:
    # A mount's root is relative to its file system, which may be mounted at /var or /var/lib.
    below = re.compile(re.escape(f"/userspace/{driver}/{version}") + r"(?:[/\s]|$)").search
    seen: set[str] = set()
    for process in _list_processes(host):
        try:
            namespace = str((process / "ns/mnt").readlink())
            if namespace not in seen:
                seen.add(namespace)
                if any(below(line) for line in _read_lines(process / "mountinfo")):
                    return True
            if any(below(str((process / name).readlink())) for name in ("exe", "cwd")):
                return True
            if any(below(line) for line in _read_lines(process / "maps")):
                return True
            if any(below(str(each.readlink())) for each in (process / "fd").iterdir()):
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended, or is a kernel thread
        except OSError:
            return True
    return False


def _list_processes(host: Host) -> Iterator[Path]:
    return (each for each in host.proc.iterdir() if each.name.isdecimal())


def _read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a table. Raises OSError if there are too many."""
    with path.open(errors="replace") as file:
        for number, line in enumerate(file):
            if number >= _LINES:
                raise OSError(f"{path}: more than {_LINES} lines")
            yield line
