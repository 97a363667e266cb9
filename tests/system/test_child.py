"""A child brings back bytes, errors and its own death; limits end what would take more."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nodeside.driver.module.elf import MalformedElf
from nodeside.errors import DeadlinePassed, ExitCode, NoSpace
from nodeside.system.child import ChildDied, ChildLimits, ChildRaised, NoProcess, run_in_child
from tests import TOP
from tests.patience import patience

LONG = patience(60.0)  # seconds: a deadline that only a broken test meets
LIMITS = ChildLimits(memory=64 << 20, processor=2, answer=1 << 20)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process ids of the children that are made."""
    pids: list[int] = []
    fork = os.fork

    def recorded() -> int:
        pids.append(fork())
        return pids[-1]

    monkeypatch.setattr(os, "fork", recorded)
    return pids


def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("limits", [None, LIMITS])
def test_bytes_come_back_whole(limits: ChildLimits | None) -> None:
    data = os.urandom(300_000)  # more than a pipe holds

    assert run_in_child(lambda: data, 10, limits=limits) == data
    assert run_in_child(lambda: 7, 10, limits=limits) == b""


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("made_by", ["fork", "pipe"])
def test_a_child_that_cannot_be_started_is_no_error_of_the_call(
    made_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EAGAIN of fork(2) would be taken for that of delete_module(2): the module is in use."""
    open_before = open_files()
    monkeypatch.setattr(os, made_by, lambda: raising(OSError(errno.EAGAIN, "no more of them")))

    with pytest.raises(NoProcess, match="cannot start a child process: no more of them") as caught:
        run_in_child(lambda: b"", 10)

    assert caught.value.retryable
    assert open_files() == open_before


@pytest.mark.parametrize("limits", [None, LIMITS])
@pytest.mark.parametrize("error", [ValueError("a bug"), OSError("no number"), KeyboardInterrupt()])
def test_an_exception_that_nobody_expected_is_no_success(
    error: BaseException, limits: ChildLimits | None
) -> None:
    with pytest.raises(ChildRaised, match=rf"in raising(.|\n)*{type(error).__name__}") as caught:
        run_in_child(lambda: raising(error), 10, limits=limits)

    assert caught.value.kind == type(error).__name__


def test_only_files_that_are_to_be_kept_stay_open_whatever_the_highest_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel before 5.9 would try a billion numbers: each child would take minutes."""
    monkeypatch.setattr(os, "closerange", lambda *_: raising(AssertionError("counted")))
    with open(os.devnull) as kept, open(os.devnull) as other:

        def look() -> bytes:
            os.fstat(kept.fileno())
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(other.fileno())
            return b"as it should be"

        assert run_in_child(look, 60, keep=(kept.fileno(),)) == b"as it should be"


def test_an_errno_comes_back() -> None:
    with pytest.raises(OSError, match=r"\[Errno 16\] Device or resource busy"):
        run_in_child(lambda: raising(OSError(16, "busy")), 10)


def test_an_error_of_ours_comes_back_as_what_it_was() -> None:
    with pytest.raises(MalformedElf, match="damaged") as caught:
        run_in_child(lambda: raising(MalformedElf("damaged", hint="fetch it again")), 10)

    error = caught.value
    assert (error.hint, error.exit_code, error.reason, error.retryable) == (
        "fetch it again", ExitCode.BUNDLE, "NotAModule", False,
    )  # fmt: skip
    with pytest.raises(NoSpace) as full:
        run_in_child(lambda: raising(NoSpace("full")), 10)
    assert full.value.retryable


def test_memory_has_a_limit_and_the_parent_has_not() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)

    with pytest.raises(ChildRaised) as caught:
        # Far more than earlier tests of this process may have freed: that stays mapped.
        run_in_child(lambda: bytes(64 * LIMITS.memory), 10, limits=LIMITS)

    assert caught.value.kind == "MemoryError"
    assert run_in_child(lambda: bytes(LIMITS.memory // 2)[:1], 10, limits=LIMITS) == b"\0"
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.slow
def test_processor_time_has_a_limit() -> None:
    def spin() -> None:
        while True:
            pass

    with pytest.raises(ChildDied, match="killed by SIGXCPU"):
        run_in_child(spin, 600, limits=ChildLimits(LIMITS.memory, 1, 100))


def test_an_answer_has_a_limit() -> None:
    with pytest.raises(ChildDied, match=r"^its answer has more than 1000 bytes"):
        run_in_child(lambda: bytes(200_000), 10, limits=ChildLimits(LIMITS.memory, 2, 1000))


def test_one_that_does_not_end_is_killed_at_its_deadline(forked: list[int]) -> None:
    with pytest.raises(DeadlinePassed):
        run_in_child(lambda: threading.Event().wait(), 0.01, limits=LIMITS)

    with pytest.raises(ChildProcessError):  # not there, not even as a zombie
        os.waitpid(forked[0], os.WNOHANG)


def test_one_that_is_killed_leaves_no_zombie_and_no_file(forked: list[int]) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())

    with pytest.raises(ChildDied, match="killed by SIGKILL"):
        run_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL), 10, limits=LIMITS)

    assert sorted(Path("/proc/self/fd").iterdir()) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], os.WNOHANG)


def test_half_an_answer_is_none() -> None:
    with pytest.raises(ChildDied, match="exit code 0"):
        run_in_child(lambda: os._exit(0), 10)


def test_ctrl_c_is_for_the_parent_alone() -> None:
    """A bundle is not refused because somebody stopped its reader."""

    def interrupted() -> bytes:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return b"went on"

    assert run_in_child(interrupted, 10, limits=LIMITS) == b"went on"
    assert run_in_child(interrupted, 10) == b"went on"


def test_a_limit_that_is_lower_already_stays() -> None:
    def twice() -> bytes:
        return run_in_child(lambda: b"inner", 10, limits=ChildLimits(1 << 40, 10**6, 100))

    assert run_in_child(twice, 10, limits=LIMITS) == b"inner"


def test_what_hangs_is_left_behind_and_not_tried_again_while_it_does(forked: list[int]) -> None:
    reader, writer = os.pipe()

    def hang() -> bytes:
        return os.read(reader, 1)

    try:
        for _ in range(3):
            with pytest.raises(DeadlinePassed):
                run_in_child(hang, 0.1, keep=(reader,), alone="read")
        assert len(forked) == 1
        assert run_in_child(lambda: b"x", 10, alone="another thing") == b"x"
        os.write(writer, b"x")
        os.waitid(os.P_PID, forked[0], os.WEXITED | os.WNOWAIT)
        assert run_in_child(lambda: b"x", 10, alone="read") == b"x"
    finally:
        os.close(reader)
        os.close(writer)


def test_one_that_was_reaped_by_somebody_else_is_gone(forked: list[int]) -> None:
    reader, writer = os.pipe()
    with pytest.raises(DeadlinePassed):
        run_in_child(lambda: os.read(reader, 1), 0.1, keep=(reader,), alone="reaped")
    os.write(writer, b"x")
    os.waitpid(forked[0], 0)
    assert run_in_child(lambda: b"x", 10, alone="reaped") == b"x"
    os.close(reader)
    os.close(writer)


def test_what_only_reads_and_hangs_does_not_outlive_the_process(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = (
        "import os, sys\n"
        "from nodeside.system import child\n"
        "from nodeside.errors import DeadlinePassed\n"
        "try:\n"
        "    child.run_in_child(lambda: open(sys.argv[1]).read(), 0.1, alone='read')\n"
        "except DeadlinePassed:\n"
        "    print(child._left_behind['read'])\n"
    )
    argv = [sys.executable, "-c", program, str(pipe)]
    said = subprocess.run(argv, cwd=TOP, capture_output=True, text=True, timeout=LONG, check=True)
    deadline = time.monotonic() + LONG
    while Path(f"/proc/{int(said.stdout)}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
