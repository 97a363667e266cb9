"""Out of memory in a build: which process is killed first, how it is detected and reported.

The container has a limit (`build.memoryLimitMib` in driver.yaml, set by the controller). At the
limit the kernel kills. On cgroup v2 a kubelet makes it kill the whole container at once
(memory.oom.group); the sidecar's next start then finds that its predecessor died in the middle of a
build. Elsewhere the kernel kills one process and counts that in the container's cgroup.

Sources: Documentation/admin-guide/cgroup-v2.rst (memory.events, memory.oom.group),
cgroup-v1/memory.rst (memory.oom_control), proc_pid_oom_score_adj(5).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nodeside.protocol.build_records import FailureKind
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.jobs import cgroup_files, memory_limit

_FIRST_TO_DIE = b"1000"  # the highest score; the sidecar itself has that of a node-critical pod
MOST_LIVES = 5  # attempts at a build that is killed again and again


def be_killed_first() -> None:
    """Give this process and its children the highest score of the OOM killer.

    No pod field does that, and the kubelet protects all containers of a node-critical pod. Raising
    one's own score takes no privilege.
    """
    with suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, _FIRST_TO_DIE)
        finally:
            os.close(fd)


def count_kills(root: Path) -> int:
    """Return how many processes of this container the OOM killer has killed since it started."""
    highest = 0
    for text in cgroup_files(root, "memory.events", "memory.oom_control"):
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdecimal():
                highest = max(highest, int(count))
    return highest


def lives_for(jobs: int) -> int:
    """Return how often a build may be killed. Each kill halves its jobs; one job is tried twice."""
    return min(MOST_LIVES, jobs.bit_length() + 1)


def out_of_memory_error(root: Path, what: str, jobs: int) -> BuildFailed:
    """Return the failure that names the limit. `what` describes the event."""
    limit = memory_limit(root)
    where = f"at the limit of {limit >> 20} MiB" if limit else "on a node without free memory"
    return BuildFailed(
        FailureKind.OUT_OF_MEMORY,
        f"out of memory: {what} {where}; "
        f"the last attempt ran {jobs} {'job' if jobs == 1 else 'jobs'}",
        hint="raise build.memoryLimitMib in driver.yaml",
    )
