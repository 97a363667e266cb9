"""The real sidecar as a process of this machine: which one it is, and what it has used."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from bench.room import BenchError
from nodeside.protocol.shared_directory import SharedDir


def find_sidecar(shared: SharedDir) -> psutil.Process:
    """The process that runs toolkit.pyz in the container of this shared directory."""
    for found in psutil.process_iter(["cmdline"]):
        if not (found.info["cmdline"] or [""])[0].endswith("/loader"):
            continue
        with suppress(OSError):  # psutil has no mounts of another process
            if str(shared.root) in Path(f"/proc/{found.pid}/mountinfo").read_text():
                return found
    raise BenchError(f"no process of a sidecar on {shared.root}")


def cpu_seconds(process: psutil.Process) -> float:
    """What a process and its ended descendants have used."""
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system


def pss(process: psutil.Process) -> float:
    """The proportional set size of a process, in MiB (Documentation/filesystems/proc.rst)."""
    return process.memory_full_info().pss / (1 << 20)
