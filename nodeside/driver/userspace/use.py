"""Whether anybody on the node still has a version of the files: a mount, or a process.

A container has them as mounts, whose root in their file system is below the version. A process of
the host has its program, libraries, open files or working directory there. What cannot be read
counts as in use. A child process looks: to read of a process that is stuck in the kernel may never
end.
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
_LINES = 1 << 16  # of a table of mounts or mappings


def in_use(host: Host, driver: str, version: str) -> bool:
    """Return whether a mount or a process has something of a version. Ends within 10 s."""
    try:
        found = run_in_child(
            lambda: b"1" if _in_use(host, driver, version) else b"0", _SECONDS, alone="look for use"
        )
    except (ChildDied, ChildRaised, NodesideError, OSError) as problem:
        log.warning("cannot see who uses files of a driver; they stay", problem=problem)
        return True
    return found != b"0"


def _in_use(host: Host, driver: str, version: str) -> bool:
    # The path in its file system: /var, or /var/lib, may be one of its own.
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
            continue  # it has ended, or is one of the kernel's
        except OSError:
            return True
    return False


def _list_processes(host: Host) -> Iterator[Path]:
    return (each for each in host.proc.iterdir() if each.name.isdecimal())


def _read_lines(path: Path) -> Iterator[str]:
    """Yield lines. If there are too many, the last one is in use by definition."""
    with path.open(errors="replace") as file:
        for number, line in enumerate(file):
            if number >= _LINES:
                raise OSError(f"{path}: more than {_LINES} lines")
            yield line
