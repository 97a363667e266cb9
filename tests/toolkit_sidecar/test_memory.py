"""Memory that runs out in a build: who dies first, and that it is said, and not tried for ever."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from nodeside.protocol.build_records import FailureKind
from nodeside.toolkit_sidecar.memory import count_kills, lives_for
from tests.toolkit_sidecar.faketoolkit import FakeToolkit, SidecarProcess, until

SLEEPER = 'echo "$PPID" >$HOME/pid; sleep 1000\n'


@pytest.fixture
def limited(toolkit: FakeToolkit) -> FakeToolkit:
    """In a container of 256 MiB, where nothing was killed yet: a single job."""
    toolkit.write("proc/self/cgroup", "0::/\n")
    toolkit.write("sys/fs/cgroup/memory.max", f"{256 << 20}\n")
    toolkit.write("sys/fs/cgroup/memory.events", "low 0\nmax 7\noom 0\noom_kill 0\n")
    return toolkit


def begins(sidecar: SidecarProcess, out: Path, time: int) -> None:
    def said() -> bool:
        return (out / "pid").exists() and (out / "begun").read_text() == str(time)

    until(said, lambda: f"the build to begin {time} times; {sidecar.output}")


def test_a_build_is_killed_before_anything_else_of_a_node(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "sh -c 'cat /proc/self/oom_score_adj'; ko straw\n")
    result = toolkit.answer(toolkit.request())
    assert result.succeeded, result.message
    assert "1000" in result.log_tail
    assert Path("/proc/self/oom_score_adj").read_text() != "1000\n", "of whoever started it"


@pytest.mark.slow
def test_a_build_that_has_its_container_killed_is_given_up_and_the_limit_named(
    limited: FakeToolkit,
) -> None:
    limited.vendor("vendor.sh", SLEEPER)
    request = limited.request()
    for time in (1, 2):
        with limited.sidecar() as sidecar:
            begins(sidecar, limited.shared.out_dir(request.id), time)
            sidecar.stop(signal.SIGKILL)
    result = limited.answer(request)
    assert result.failure is FailureKind.OUT_OF_MEMORY
    assert not result.failure.retryable
    assert result.message == (
        "out of memory: the toolkit container was killed 2 times, probably by the OOM killer at "
        "the limit of 256 MiB; the last attempt ran 1 job"
    )
    assert "build.memoryLimitMib" in result.hint


def test_a_step_of_which_the_kernel_killed_a_process_is_repeated_and_then_named(
    limited: FakeToolkit,
) -> None:
    """Where the kernel kills one process and not the container: the sidecar lives."""
    events = limited.root / "sys/fs/cgroup/memory.events"
    limited.vendor(
        "vendor.sh", f"echo x >>$PWD/../../../runs; echo oom_kill $$ >{events}; exit 2\n"
    )
    request = limited.request()
    result = limited.answer(request)
    assert result.failure is FailureKind.OUT_OF_MEMORY
    assert result.message.startswith("out of memory: the OOM killer killed a process of the build")
    assert "make" in result.command
    assert (limited.shared.root / "runs").read_text() == "x\n" * lives_for(1)


def test_a_build_for_which_half_the_jobs_need_little_enough_succeeds(limited: FakeToolkit) -> None:
    events = limited.root / "sys/fs/cgroup/memory.events"
    once = f"grep -q 'oom_kill 0' {events} && {{ echo oom_kill 1 >{events}; exit 2; }}\nko straw\n"
    limited.vendor("vendor.sh", once)
    result = limited.answer(limited.request())
    assert result.succeeded, result.message


def test_an_error_of_the_compiler_is_no_lack_of_memory(limited: FakeToolkit) -> None:
    limited.write("sys/fs/cgroup/memory.events", "oom_kill 3\n")
    limited.vendor("vendor.sh", "exit 2\n")
    result = limited.answer(limited.request())
    assert result.failure is FailureKind.COMPILE


@pytest.mark.parametrize(("jobs", "expected"), [(1, 2), (2, 3), (4, 4), (16, 5), (64, 5)])
def test_a_build_gets_half_the_jobs_each_time_and_a_single_one_twice(
    jobs: int, expected: int
) -> None:
    assert lives_for(jobs) == expected


def test_kills_are_counted_in_both_versions_of_cgroups(tmp_path: Path) -> None:
    assert count_kills(tmp_path) == 0
    old = tmp_path / "sys/fs/cgroup/memory/memory.oom_control"
    old.parent.mkdir(parents=True)
    old.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert count_kills(tmp_path) == 2
    (tmp_path / "sys/fs/cgroup/memory.events").write_text("oom 9\noom_kill 5\noom_group_kill 1\n")
    assert count_kills(tmp_path) == 5
