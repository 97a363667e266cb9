"""The real sidecar as a process of this machine: which one it is, and what it has used."""

from __future__ import annotations

import os
from pathlib import Path

from bench.room import BenchError
from nodeside.shared import SharedDir


def sidecar_pid(shared: SharedDir) -> int:
    """The process that runs toolkit.pyz in the container of this shared directory."""
    directory = str(shared.root)
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            mounts = (path / "mountinfo").read_text()
        except OSError:
            continue
        if words[0].endswith(b"/loader") and directory in mounts:
            return int(path.name)
    raise BenchError(f"no process of a sidecar on {directory}")


def cpu_seconds(pid: int) -> float:
    """What a process and its ended descendants have used: fields 14 to 17 of proc(5)'s stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> str:
    """The ids of its children, "" if it waits by itself."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()
