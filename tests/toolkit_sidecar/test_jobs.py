"""The number of jobs comes from what the container may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.toolkit_sidecar.jobs import (
    MEMORY_PER_JOB,
    CgroupLimits,
    cgroup_paths,
    cgroups_upwards,
    count_jobs,
    count_tasks,
    jobs_within,
    memory_limit,
    parse_v1,
    parse_v2,
)


@pytest.mark.parametrize(
    ("affinity", "limits", "expected"),
    [
        (8, [], 8),
        (8, [CgroupLimits(cpus=2.0)], 2),
        (8, [CgroupLimits(cpus=1.5)], 2),
        (8, [CgroupLimits(cpus=0.1)], 1),
        (64, [CgroupLimits(memory=4 * MEMORY_PER_JOB)], 4),
        (64, [CgroupLimits(memory=MEMORY_PER_JOB // 2)], 1),
        (
            64,
            [
                CgroupLimits(cpus=8),
                CgroupLimits(cpus=4, memory=100 * MEMORY_PER_JOB),
                CgroupLimits(),
            ],
            4,
        ),
    ],
)
def test_the_tightest_limit_decides(
    affinity: int, limits: list[CgroupLimits], expected: int
) -> None:
    assert jobs_within(affinity, limits) == expected


def test_cgroup_v2_files_are_read() -> None:
    files = {"cpu.max": "150000 100000\n", "memory.max": "1073741824\n", "memory.high": "max\n"}
    assert parse_v2(files) == CgroupLimits(cpus=1.5, memory=1 << 30)
    assert parse_v2({"cpu.max": "max 100000\n", "memory.max": "max\n"}) == CgroupLimits()


def test_cgroup_v1_files_are_read() -> None:
    files = {"cpu.cfs_quota_us": "400000", "cpu.cfs_period_us": "100000"}
    assert parse_v1(files) == CgroupLimits(cpus=4.0)
    unlimited = {"cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": "9223372036854771712"}
    assert parse_v1(unlimited) == CgroupLimits()


@given(st.dictionaries(st.sampled_from(["cpu.max", "memory.max", "memory.high"]), st.text()))
def test_no_text_breaks_the_reader(files: dict[str, str]) -> None:
    assert jobs_within(4, [parse_v2(files), parse_v1(files)]) >= 1


def test_the_limit_of_memory_is_the_tightest_and_not_what_the_node_has(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1024 kB\n")
    assert memory_limit(tmp_path) is None
    cgroup = tmp_path / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.max").write_text("4194304\n")
    (cgroup / "memory.high").write_text("2097152\n")
    assert memory_limit(tmp_path) == 2 << 20


@pytest.mark.parametrize(
    ("line", "directory"),
    [("0::/pod1/toolkit", "pod1/toolkit"), ("0::/elsewhere", ""), ("5:pids:/pod1", "pids/pod1")],
)
def test_the_processes_of_the_container_are_counted(
    tmp_path: Path, line: str, directory: str
) -> None:
    assert count_tasks(tmp_path) == 0
    cgroup = tmp_path / "sys/fs/cgroup" / directory
    cgroup.mkdir(parents=True)
    (cgroup / "pids.current").write_text("17\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    assert count_tasks(tmp_path) == 17


@given(st.text())
def test_no_cgroup_path_leads_out_of_the_mount(text: str) -> None:
    for path in cgroup_paths(text).values():
        for directory in cgroups_upwards(Path("/sys/fs/cgroup"), path):
            assert Path(os.path.normpath(directory)).is_relative_to("/sys/fs/cgroup")


def test_limits_of_every_level_count(tmp_path: Path) -> None:
    pod = tmp_path / "sys/fs/cgroup/kubepods/pod1"
    (pod / "toolkit").mkdir(parents=True)
    (pod / "memory.max").write_text(str(2 * MEMORY_PER_JOB))
    (pod / "toolkit/cpu.max").write_text("max 100000")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/kubepods/pod1/toolkit\n")
    assert count_jobs(tmp_path) == min(2, len(os.sched_getaffinity(0)))


def test_without_any_cgroup_file_the_usable_cpus_count(tmp_path: Path) -> None:
    assert count_jobs(tmp_path) == len(os.sched_getaffinity(0))
