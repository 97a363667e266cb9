"""The one door to other processes, with real processes."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from nodeside.errors import ExitCode, SystemRefused
from nodeside.system import process
from nodeside.system.process import ToolError, ToolMissing, ToolTimeout, WrapperFailed, run
from tests.patience import patience

LONG = patience(60.0)  # seconds: a deadline that only a broken test meets


def ends(pid: int) -> bool:
    """Whether a process that was killed comes to its end; a zombie has."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], LONG)[0])
    finally:
        os.close(fd)


def open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_a_command_gives_its_output_errors_and_time() -> None:
    done = run(["sh", "-c", "echo out; echo err >&2"], timeout=LONG)
    assert (done.exit_code, done.output, done.errors) == (0, "out\n", "err\n")
    assert done.argv == ("sh", "-c", "echo out; echo err >&2")
    assert done.elapsed > 0


def test_lines_are_handed_over_with_errors_among_them() -> None:
    lines: list[str] = []
    script = "echo one; echo two >&2; printf 'no end'"
    done = run(["sh", "-c", script], timeout=LONG, on_line=lines.append)
    assert lines == ["one", "two", "no end"]
    assert done.output == "one\ntwo\nno end"
    assert done.errors == ""


def test_input_is_handed_over_also_when_lines_are_wanted() -> None:
    data = b"line\n" * 100_000  # more than any pipe holds
    lines: list[str] = []
    assert run(["cat"], timeout=LONG, input=data).output.encode() == data
    run(["cat"], timeout=LONG, input=data, on_line=lines.append)
    assert len(lines) == 100_000


def test_a_command_that_does_not_read_its_input_is_no_error() -> None:
    assert run(["true"], timeout=LONG, input=b"x" * 1_000_000).exit_code == 0


def test_standard_input_is_closed_unless_given() -> None:
    assert run(["cat"], timeout=LONG).output == ""


def test_the_environment_is_built_from_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    seen = run(["env"], timeout=LONG, env={"JOBS": "2"}).output.splitlines()
    names = {line.partition("=")[0] for line in seen}
    assert "JOBS=2" in seen
    assert "LC_ALL=C" in seen
    assert names - set(process._ALLOWED_ENVIRONMENT) <= {"JOBS", "LC_ALL", "PWD", "SHLVL", "_"}


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert run(["printf", "a\\377b"], timeout=LONG).output == "a\ufffdb"


def test_a_failure_is_a_document() -> None:
    with pytest.raises(ToolError) as caught:
        run(["sh", "-c", "seq 30 >&2; exit 3"], timeout=LONG, hint="try again")
    lines = str(caught.value).splitlines()
    assert lines[:3] == ["exit code 3: sh -c 'seq 30 >&2; exit 3'", "[... 10 lines cut]", "11"]
    assert lines[-1] == "30"
    assert caught.value.hint == "try again"
    assert caught.value.completed.exit_code == 3


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 127", "command not found (exit code 127)"),
        ("exit 126", "not executable (exit code 126)"),
        ("kill -9 $$", "killed by SIGKILL"),
        ("exit 137", "exit code 137 (killed by SIGKILL)"),
        ("exit 255", "exit code 255"),
    ],
)
def test_an_exit_code_is_said_in_words(script: str, words: str) -> None:
    done = run(["sh", "-c", script], timeout=LONG, check=False)
    assert process.exit_code_in_words(done.exit_code) == words


def test_a_missing_command_is_named_with_a_hint() -> None:
    with pytest.raises(ToolMissing, match=r"cannot start nodeside-none: No such file") as caught:
        run(["nodeside-none"], timeout=LONG)
    assert "install the package that has nodeside-none" in caught.value.hint


def test_a_hint_to_install_is_for_a_missing_command_only() -> None:
    with pytest.raises(ToolMissing) as missing:
        run(["nodeside-none"], timeout=LONG, hint="try again", install="apt-get install none")
    with pytest.raises(ToolError) as failed:
        run(["false"], timeout=LONG, install="apt-get install false")
    with pytest.raises(ToolTimeout) as late:
        run(["sleep", "60"], timeout=0.01, install="apt-get install sleep")
    assert missing.value.hint == "apt-get install none"
    assert failed.value.hint == late.value.hint == ""


def test_a_missing_working_directory_is_not_a_missing_command(tmp_path: Path) -> None:
    with pytest.raises(SystemRefused, match=r"cannot start true in .*/none: no such directory"):
        run(["true"], timeout=LONG, cwd=tmp_path / "none")


def test_a_child_that_cannot_be_prepared_is_told_from_a_command_that_fails() -> None:
    def refuse() -> None:
        raise PermissionError

    with pytest.raises(WrapperFailed, match="cannot start true: setting up its process failed"):
        run(["true"], timeout=LONG, wrapper=refuse)


def test_an_argument_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(SystemRefused, match="cannot start echo: embedded null byte"):
        run(["echo", "a\0b"], timeout=LONG)


def test_an_argument_that_is_too_long_is_refused() -> None:
    with pytest.raises(SystemRefused, match="cannot start echo: Argument list too long"):
        run(["echo", "x" * 3_000_000], timeout=LONG)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_deadline_kills_the_whole_group_and_says_what_was_seen(
    tmp_path: Path, streamed: bool
) -> None:
    pids = tmp_path / "pids"
    script = f"echo here; sleep 1000 & echo $! $$ > {pids}; wait"
    with pytest.raises(ToolTimeout) as caught:
        run(["sh", "-c", script], timeout=0.5, on_line=(lambda _: None) if streamed else None)
    assert str(caught.value).startswith("timed out after 0.5 s: sh -c ")
    assert str(caught.value).endswith("\nhere")
    assert caught.value.exit_code is ExitCode.TIMEOUT
    assert all(ends(int(pid)) for pid in pids.read_text().split())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_command_ends_though_a_child_of_it_keeps_the_pipe(tmp_path: Path, streamed: bool) -> None:
    pid = tmp_path / "pid"
    lines: list[str] = []
    done = run(
        ["sh", "-c", f"sleep 1000 & echo $! > {pid}; echo done"],
        timeout=LONG,
        on_line=lines.append if streamed else None,
    )
    assert done.output.strip() == "done"
    assert done.elapsed < LONG
    assert ends(int(pid.read_text()))


@pytest.mark.parametrize("streamed", [False, True])
def test_a_detached_child_that_talks_for_ever_does_not_hold_the_command(
    tmp_path: Path, streamed: bool
) -> None:
    pid = tmp_path / "pid"
    # $! is setsid's own process: in the background of a shell it is no group leader, so it execs.
    script = f"setsid sh -c 'while :; do echo more; done' & echo $! > {pid}; echo done"
    try:
        lines: list[str] = []
        on_line = lines.append if streamed else None
        done = run(["sh", "-c", script], timeout=LONG, on_line=on_line)
        assert done.exit_code == 0
        assert "done" in done.output
        assert done.elapsed < LONG
    finally:
        with suppress(ProcessLookupError):  # SIGPIPE has ended it, and PID 1 reaped it
            os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_detached_child_does_not_hold_the_deadline(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"setsid sleep 1000 & echo $! > {pid}; sleep 1000"
    try:
        with pytest.raises(ToolTimeout):
            run(["sh", "-c", script], timeout=0.3, on_line=lambda _: None)
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_command_that_closes_its_output_is_waited_for() -> None:
    done = run(["sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 4"], timeout=LONG, check=False)
    assert done.exit_code == 4


def test_an_error_of_the_listener_ends_the_command(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def listen(line: str) -> None:
        raise KeyboardInterrupt(line)

    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", f"echo $$ > {pid}; echo x; sleep 1000"], timeout=LONG, on_line=listen)
    assert ends(int(pid.read_text()))


def test_endless_output_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_OUTPUT_BYTES", 1000)
    done = run(["head", "-c", "5000", "/dev/zero"], timeout=LONG)
    assert done.output == "\0" * 1000 + "\n[... 4000 bytes cut]"


def test_a_line_without_end_is_handed_over_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LINE_BYTES", 1000)
    pieces: list[str] = []
    run(["head", "-c", "300000", "/dev/zero"], timeout=LONG, on_line=pieces.append)
    assert len(pieces) > 1
    assert "".join(pieces) == "\0" * 300_000


def test_no_descriptor_is_left_open() -> None:
    before = open_files()
    run(["cat"], timeout=LONG, input=b"x")
    run(["true"], timeout=LONG, on_line=lambda _: None)
    assert open_files() == before


def test_a_started_command_leads_a_group_that_can_be_killed() -> None:
    child = process.start(["sleep", "1000"])
    assert os.getpgid(child.pid) == child.pid
    process.kill_group(child.pid)
    assert child.wait(LONG) == -signal.SIGKILL
    process.kill_group(child.pid)  # gone: silent


ADOPTING = """
import ctypes, os, sys, time
from nodeside.system import process
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come here, as to pid 1
def children():
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) or "alive"
    except ChildProcessError:
        return None
"""


def adopting(script: str) -> str:
    """What a script prints that gets the orphans of its commands, as process 1 of a container."""
    here = {"PYTHONPATH": str(Path(__file__).parents[1])}
    argv = [sys.executable, "-c", ADOPTING + script]
    return process.run(argv, timeout=60, env=here).output.strip()


@pytest.mark.parametrize(
    ("script", "timeout"), [("sleep 60 | sleep 60", 0.2), ("(sleep 60 &); exit 0", 30)]
)
def test_process_one_keeps_no_zombies_of_a_command(script: str, timeout: float) -> None:
    run = f"process.run(['sh', '-c', {script!r}], timeout={timeout})"
    code = f"try: {run}\nexcept process.ToolTimeout: pass\nprint(children())"
    assert adopting(code) == "None"


def test_orphans_that_left_their_group_are_collected_once_they_have_ended() -> None:
    code = """
process.run(["setsid", "--fork", "true"], timeout=30)
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
process.reap_orphans()
print(children())
"""
    assert adopting(code) == "None"


def test_a_command_that_finds_the_disk_full_is_told_by_one_line_and_its_exit_code() -> None:
    script = (
        "for n in 1 2 3; do echo \"cp: error writing 'x$n': No space left on device\"; done >&2"
    )

    with pytest.raises(ToolError) as caught:
        run(["sh", "-c", f"{script}; exit 1"], timeout=LONG)

    assert caught.value.exit_code is ExitCode.NO_SPACE
    assert str(caught.value).endswith("\ncp: error writing 'x1': No space left on device")
    assert caught.value.hint == "free some space: df -h"
