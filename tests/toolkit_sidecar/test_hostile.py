"""Vendor code that means harm, or does it: forks away, plants links, never ends, fills the log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodeside.protocol.build_records import FailureKind
from nodeside.system import process
from nodeside.system.host import Host
from nodeside.toolkit_sidecar import builder, confinement, descendants, sidecar
from nodeside.toolkit_sidecar.buildlog import BuildLog
from nodeside.toolkit_sidecar.confinement import BuildWatch, Step, free_bytes, run_confined
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.supervisor import Life
from tests.toolkit_sidecar.faketoolkit import BOOT_ID, LONG, FakeToolkit, lives, until

_ESCAPE = """
python=$(command -v python3)
env -i $python -c "
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open('$HOME/escaped', 'w').write(str(os.getpid()))
        os.close(0); os.close(1); os.close(2)
        time.sleep(1000)
    os._exit(0)
os.wait()
"
while [ ! -s $HOME/escaped ]; do sleep 0.01; done
cp $HOME/escaped ../../../escaped
ko straw
"""

# An ordinary user's sidecar, and what a process of the same user can open of it.
_SAME_USER = """
import ctypes, errno, os, sys
from nodeside.system import process
from nodeside.toolkit_sidecar import supervisor
from nodeside.toolkit_sidecar.descendants import make_enclosure

def look():
    sys.stdout.flush()
    if os.fork() == 0:
        for name, mode in (("fd/1", os.O_WRONLY), ("mem", os.O_RDWR)):
            try:
                os.open(f"/proc/{os.getppid()}/{name}", mode)
                said = "open"
            except OSError as error:
                said = errno.errorcode[error.errno]
            print(f"{name}:{said}", flush=True)
        os._exit(0)
    os.wait()

os.fchown(1, 65534, 65534)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again, as after an exec
print("before")
look()
supervisor._prepare_for_vendor_code()
print("after")
look()
print("score", flush=True)
child = process.start(["cat", "/proc/self/oom_score_adj"], stdout=1, wrapper=make_enclosure())
child.wait()
"""


@pytest.mark.slow
def test_a_process_that_forks_away_dies_with_its_build(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", _ESCAPE)
    result = toolkit.answer(toolkit.request())
    assert result.succeeded, result.message
    assert not lives((toolkit.shared.root / "escaped").read_text())


def test_a_step_fails_if_its_processes_do_not_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descendants, "kill_descendants", lambda *_: frozenset((7, 8)))
    watch = BuildWatch(seconds=LONG, request=tmp_path, disk=tmp_path)
    step = Step("make", ("true",), tmp_path)
    with (
        BuildLog(tmp_path / "log", lambda _: None) as log,
        pytest.raises(BuildFailed, match="make ended, but 2 of its processes do not die: pid 7"),
    ):
        run_confined(step, mark="none", log=log, watch=watch)


# Its first process ends, and cannot be reaped while another one traces it.
_TRACED = """
import ctypes, os, time
libc, first = ctypes.CDLL(None), os.getpid()
libc.prctl(0x59616D61, ctypes.c_long(-1), None, None, None)  # PR_SET_PTRACER: anybody
ready, told = os.pipe()
begin, go = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        os.read(begin, 1)
        libc.ptrace(0x4206, first, None, None)  # PTRACE_SEIZE
        os.write(told, b"x")
        time.sleep({seconds})
    os._exit(0)
os.wait()  # SIGCHLD would stop a process that is traced
os.write(go, b"x")
os.read(ready, 1)
"""


def test_a_process_that_traces_a_step_does_not_hold_up_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement, "_REAP", 0.5)
    begun = time.monotonic()
    watch = BuildWatch(seconds=LONG, request=tmp_path, disk=tmp_path)
    step = Step("make", (sys.executable, "-c", _TRACED.format(seconds=LONG)), tmp_path)
    with BuildLog(tmp_path / "log", lambda _: None) as log:
        assert run_confined(step, mark="none", log=log, watch=watch) == 0
    assert time.monotonic() - begun < LONG / 2


def test_a_child_that_keeps_the_output_open_does_not_hold_up_the_answer(
    toolkit: FakeToolkit,
) -> None:
    toolkit.vendor("vendor.sh", "sleep 1000 & echo $! >../../../child; ko straw\n")
    assert toolkit.answer(toolkit.request()).succeeded
    assert not lives((toolkit.shared.root / "child").read_text())


def test_a_build_that_never_ends_is_ended(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "trap '' TERM INT; while :; do sleep 0.1; done\n")
    result = toolkit.answer(toolkit.request(timeout=1.0))
    assert result.failure is FailureKind.TIMEOUT
    assert result.message == "the build did not end within 1 s"
    assert "make" in result.command


@pytest.mark.slow
def test_a_build_that_never_stops_talking_is_ended(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "exec yes\n")
    result = toolkit.answer(toolkit.request(timeout=0.2))
    assert result.failure is FailureKind.TIMEOUT


def test_a_module_that_is_a_link_is_not_read(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "ln -s /etc/hostname straw.ko\n")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.NO_MODULE
    assert "it produced: none" in result.message


def test_a_planted_directory_of_modules_is_not_used(toolkit: FakeToolkit, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "straw.ko").write_text("keep")
    toolkit.vendor("vendor.sh", f"ln -s {victim} ../modules; ko straw\n")
    request = toolkit.request()
    assert toolkit.answer(request).succeeded
    assert (victim / "straw.ko").read_text() == "keep"
    assert not (toolkit.shared.out_dir(request.id) / "modules").is_symlink()


def test_a_device_or_pipe_in_place_of_a_module_blocks_nothing(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", "mkfifo straw.ko; ko hay\n")
    result = toolkit.answer(toolkit.request())
    assert result.message == "the build produced no module named straw; it produced: hay"


def test_a_planted_answer_is_replaced_by_the_true_one(toolkit: FakeToolkit) -> None:
    toolkit.vendor(
        "vendor.sh",
        "id=$(basename $HOME); mkdir -p ../../../results/$id.json/deep; ko straw\n",
    )
    assert toolkit.answer(toolkit.request()).succeeded


@pytest.mark.slow
def test_a_tree_too_deep_for_recursion_is_removed(toolkit: FakeToolkit) -> None:
    """Its path is too long for the kernel as well. To remove it takes the square of its depth."""
    deep = "import os\nfor _ in range(1100): os.mkdir('deep'); os.chdir('deep')"
    toolkit.vendor("vendor.sh", f'python3 -c "{deep}"; exit 1\n')
    first = toolkit.request(attempt=1)
    out = toolkit.shared.out
    try:
        with toolkit.sidecar() as sidecar:
            assert not sidecar.result(first).succeeded
            toolkit.shared.request_path(first.id).unlink()
            until(lambda: not list(out.iterdir()), "the deep tree to go")
    finally:  # pytest itself cannot remove such a tree
        process.run(["rm", "-rf", out], timeout=LONG)


def test_words_of_a_full_disk_do_not_make_an_error_of_the_compiler_another_one(
    toolkit: FakeToolkit,
) -> None:
    said = "echo 'warning: No space left on device: skipped'; echo 'a.c:1: error: x'"
    toolkit.vendor("vendor.sh", f"{said}; exit 2\n")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.COMPILE
    assert not result.failure.retryable


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_build_cannot_open_the_log_or_the_memory_of_its_sidecar() -> None:
    said = process.run([sys.executable, "-c", _SAME_USER], timeout=LONG)
    assert said.output.split() == [
        "before", "fd/1:open", "mem:open", "after", "fd/1:EACCES", "mem:EACCES", "score", "1000",
    ]  # fmt: skip


@pytest.mark.parametrize("closed", [False, True])
def test_a_worker_that_builds_could_open_begins_none(
    toolkit: FakeToolkit, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """Its supervisor closes itself before it forks the next one."""
    monkeypatch.setattr(sidecar, "die_with_parent", lambda _: None)
    monkeypatch.setattr(sidecar, "kill_others", lambda _: descendants.KillResult(0, frozenset()))
    failed = BuildFailed(FailureKind.COMPILE, "make failed")
    monkeypatch.setattr(
        builder,
        "answer_request",
        lambda request, *_, **__: builder.refusal_result(request.id, BOOT_ID, failed),
    )
    request = toolkit.request()
    worker = sidecar.Sidecar(toolkit.shared, Host(toolkit.root), lambda *_: None)
    worker.answer_requests(Life(first=True, died="", deaths=0, keeper=0, closed=closed))
    assert (toolkit.shared.read_result(request.id, BOOT_ID) is not None) == closed


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_build_that_fills_the_disk_is_answered_as_such(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    with mounted_tmpfs(small, "100m"):
        toolkit = FakeToolkit(small)
        toolkit.vendor("vendor.sh", "cat /dev/zero >$HOME/filler; exit 1\n")
        free = free_bytes(small)
        result = toolkit.answer(toolkit.request())
        assert result.failure is FailureKind.DISK_FULL
        assert "no space left in" in result.message
        assert free_bytes(small) > free - (1 << 20)
        assert "straw 1.0" in toolkit.shared.build_log(result.request).read_text()


@pytest.mark.parametrize(
    ("free", "source", "left"),
    [
        (40 << 30, 0, 15 << 30),
        (15 << 30, 0, 14 << 30),
        (15 << 30, 1 << 30, 4 << 30),
        (1 << 30, 0, 8 << 20),
    ],
)
def test_a_build_leaves_space_to_others_beyond_what_it_may_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, source: int, left: int
) -> None:
    blocks = [free]
    inodes = {"f_files": 0, "f_favail": 0}  # as btrfs says
    size = {"f_frsize": 1, "f_blocks": 100 << 30}
    monkeypatch.setattr(
        os, "statvfs", lambda _: SimpleNamespace(f_bavail=blocks[0], **size, **inodes)
    )
    watch = BuildWatch(seconds=LONG, request=tmp_path, disk=tmp_path)
    watch.leave_to_others(source)
    part = watch.limited_to(LONG / 2, "part of it")
    for looking in (watch, part):
        blocks[0] = left
        looking.check()
        looking._next = 0.0
        blocks[0] = left - 1
        with pytest.raises(BuildFailed, match="no space left in"):
            looking.check()


def test_a_build_leaves_inodes_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inodes = [2_000_000]
    size = {"f_frsize": 1, "f_blocks": 100 << 30, "f_bavail": 50 << 30, "f_files": 10_000_000}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_favail=inodes[0], **size))
    watch = BuildWatch(seconds=LONG, request=tmp_path, disk=tmp_path)
    watch.leave_to_others(0)
    inodes[0] = 500_000
    watch.check()
    watch._next = 0.0
    inodes[0] -= 1
    with pytest.raises(BuildFailed, match="too many files in"):
        watch.check()


def test_a_build_leaves_processes_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [16_385]
    monkeypatch.setattr(confinement, "count_tasks", lambda _: tasks[0])
    watch = BuildWatch(seconds=LONG, request=tmp_path, disk=tmp_path)
    watch.check()  # elsewhere than in a container of its own, others are counted with it
    monkeypatch.setattr(descendants._Container, "ours", True)
    watch._next = 0.0
    with pytest.raises(BuildFailed, match="16385 processes and threads, at most 16384"):
        watch.check()
    tasks[0] -= 1
    watch._next = 0.0
    watch.check()


_COMPILER = """#!/bin/bash
here=${0%/*}
echo gcc 12.2.0
grep NoNewPrivs /proc/self/status >$here/said
cat /proc/self/oom_score_adj >>$here/said
(exec >/dev/null 2>&1; setsid bash -c "echo \\$\\$ >$here/pid; exec sleep 1000" &)
while [ ! -s $here/pid ]; do sleep 0.01; done
"""


def test_a_compiler_of_the_drivers_choice_is_enclosed_and_leaves_nothing(
    toolkit: FakeToolkit, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(_COMPILER)
    compiler.chmod(0o755)
    toolkit.vendor("vendor.sh", f"kill -0 $(cat {tmp_path}/pid) && exit 1\nko straw\n")
    assert toolkit.answer(toolkit.request(make_arguments=(f"CC={compiler}",))).succeeded
    assert not lives((tmp_path / "pid").read_text().strip())
    assert (tmp_path / "said").read_text().split() == ["NoNewPrivs:", "1", "1000"]


_BESIDE = """
touch ../../x
mkdir ../../y
name=$(printf '%0250d')
mkdir ../../$name
touch ../../$name/file ../../../results/z
rm -f ../../../results/sidecar.json
mkdir ../../../results/sidecar.json ../../../results/kernels.json
ko straw
"""


@pytest.mark.slow
def test_what_a_build_leaves_beside_its_output_is_removed(toolkit: FakeToolkit) -> None:
    toolkit.vendor("vendor.sh", _BESIDE)
    with toolkit.sidecar() as sidecar:
        first = toolkit.request()
        assert sidecar.result(first).succeeded
        until(lambda: len(list(toolkit.shared.out.iterdir())) == 1, "the files to go")
        planted = {"z", "sidecar.json", "kernels.json"}
        results = toolkit.shared.results
        until(lambda: not planted & {path.name for path in results.iterdir()}, "the rest to go")
        assert toolkit.shared.out_dir(first.id).is_dir()
        assert toolkit.shared.sidecar_lives()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_too_little_space_is_said_before_the_build(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    with mounted_tmpfs(small, "30m"):
        toolkit = FakeToolkit(small)
        result = toolkit.answer(toolkit.request())
        assert result.failure is FailureKind.DISK_FULL
        assert "a build of this source needs 64 MiB" in result.message


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount without exec")
def test_a_shared_directory_without_exec_is_named(tmp_path: Path) -> None:
    place = tmp_path / "noexec"
    place.mkdir()
    toolkit = FakeToolkit(tmp_path)
    with mounted_tmpfs(toolkit.shared.out, "200m,noexec,mode=1777"):
        result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.NO_EXEC
    assert "programs may not be run in" in result.message
    assert "without noexec" in result.hint


@contextmanager
def mounted_tmpfs(at: Path, options: str) -> Iterator[None]:
    process.run(["mount", "-t", "tmpfs", "-o", f"size={options}", "tmpfs", at], timeout=LONG)
    try:
        yield
    finally:
        process.run(["umount", "-l", at], timeout=LONG)
