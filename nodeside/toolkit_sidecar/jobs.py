"""The number of jobs for make: limited by what this container may use, not by the host.

The pure part parses the text of cgroup files; `count_jobs` finds the files.

Sources: Documentation/admin-guide/cgroup-v2.rst (cpu.max, memory.max, memory.high) and
cgroup-v1/memory.rst, scheduler/sched-bwc.rst for v1.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from nodeside.values import frozen

# A compiler that works on a large kernel file peaks at about 300 MiB (gcc 12 on amdgpu's display
# code); modpost and the linker add to that once. Half a GiB per job leaves room for the page cache.
MEMORY_PER_JOB = 512 << 20

# cgroup v1 expresses "no limit" as a number near 2^63, rounded down to a page.
_V1_UNLIMITED = 1 << 60


@frozen
class CgroupLimits:
    """The limits of a cgroup: CPUs (1.5 is one and a half) and bytes of memory; None: no limit."""

    cpus: float | None = None
    memory: int | None = None


def jobs_within(affinity: int, limits: Iterable[CgroupLimits]) -> int:
    """Return the number of jobs for `affinity` usable CPUs under all of `limits`; at least one.

    A fraction of a CPU counts as one: a throttled job is better than an idle CPU.
    """
    most = affinity
    for limit in limits:
        if limit.cpus is not None:
            most = min(most, -int(-limit.cpus // 1))
        if limit.memory is not None:
            most = min(most, limit.memory // MEMORY_PER_JOB)
    return max(1, most)


def parse_v2(files: Mapping[str, str]) -> CgroupLimits:
    """Return the limits of one cgroup v2 directory. `files` maps file names to their text."""
    memories = [_parse_number(files.get(name, "")) for name in ("memory.max", "memory.high")]
    memory = min((value for value in memories if value is not None), default=None)
    quota, _, period = files.get("cpu.max", "").strip().partition(" ")
    return CgroupLimits(_cpu_ratio(quota, period), memory)


def parse_v1(files: Mapping[str, str]) -> CgroupLimits:
    """Return the limits of one cgroup v1 directory of the cpu or the memory controller."""
    memory = _parse_number(files.get("memory.limit_in_bytes", ""))
    if memory is not None and memory >= _V1_UNLIMITED:
        memory = None
    cpus = _cpu_ratio(files.get("cpu.cfs_quota_us", ""), files.get("cpu.cfs_period_us", ""))
    return CgroupLimits(cpus, memory)


def cgroup_paths(text: str) -> dict[str, str]:
    """Parse `/proc/self/cgroup` into controller to path; "" is the v2 hierarchy. See cgroups(7)."""
    by_controller: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            by_controller.update(dict.fromkeys(controllers.split(","), path))
    return by_controller


def cgroups_upwards(mount: Path, path: str) -> list[Path]:
    """Return the directory of a cgroup and all its ancestors, up to the mount.

    Inside a container the path may be the host's while the mount shows only the container's part.
    Directories that do not exist are returned too; the reader ignores them.
    """
    inner = Path(path.lstrip("/"))
    if ".." in inner.parts:
        return [mount]
    return (
        [mount / inner, *(mount / parent for parent in inner.parents)] if path != "/" else [mount]
    )


def count_jobs(root: Path) -> int:
    """Return the number of jobs for this process, from the cgroup files under `root`."""
    total = CgroupLimits(memory=_total_memory(_read_text(root / "proc/meminfo")))
    return jobs_within(len(os.sched_getaffinity(0)), [*_read_limits(root), total])


def memory_limit(root: Path) -> int | None:
    """Return the tightest memory limit of this process in bytes, None if there is none."""
    return min(
        (limit.memory for limit in _read_limits(root) if limit.memory is not None), default=None
    )


def count_tasks(root: Path) -> int:
    """Return how many processes and threads this container has, 0 if that is unknown."""
    texts = cgroup_files(root, "pids.current", "pids.current", "pids")
    return max(_parse_number(text) or 0 for text in texts)


def cgroup_files(root: Path, v2: str, v1: str, controller: str = "memory") -> Iterator[str]:
    """Yield the text of a file of this process's cgroup, for cgroup v2 and then v1.

    `v2` and `v1` are the file's names there. A missing file yields "".
    """
    paths, mount = cgroup_paths(_read_text(root / "proc/self/cgroup")), root / "sys/fs/cgroup"
    for place, path, name in (
        (mount, paths.get("", "/"), v2),
        (mount / controller, paths.get(controller, "/"), v1),
    ):
        texts = (_read_text(directory / name) for directory in cgroups_upwards(place, path))
        yield next((text for text in texts if text), "")


def _read_limits(root: Path) -> list[CgroupLimits]:
    """Return the limits of each cgroup that this process is in."""
    paths = cgroup_paths(_read_text(root / "proc/self/cgroup"))
    mount = root / "sys/fs/cgroup"
    limits = [
        parse_v2(_read_all(directory, ("cpu.max", "memory.max", "memory.high")))
        for directory in cgroups_upwards(mount, paths.get("", "/"))
    ]
    for controller in ("cpu", "memory"):
        for directory in cgroups_upwards(mount / controller, paths.get(controller, "/")):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes")
            limits.append(parse_v1(_read_all(directory, names)))
    return limits


def _total_memory(meminfo: str) -> int | None:
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            kib = _parse_number(rest.replace("kB", ""))
            return None if kib is None else kib << 10
    return None


def _cpu_ratio(quota: str, period: str) -> float | None:
    """Return the CPUs for a quota and a period in µs; None is no limit ("max" and -1)."""
    quota_us, period_us = _parse_number(quota), _parse_number(period)
    return quota_us / period_us if quota_us and period_us else None


def _parse_number(text: str) -> int | None:
    """Parse a non-negative decimal number. Return None for "max", "-1", an empty or odd file."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _read_all(directory: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: _read_text(directory / name) for name in names}


def _read_text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""
