"""The agent and the host's end of the line, joined by a socket without a machine between them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import nodeside
from nodeside.errors import DeadlinePassed
from nodeside.system import process
from nodeside.trial.errors import MachineLost, TrialError
from nodeside.trial.machine.link import MachineLink
from nodeside.trial.machine.machine import GuestProcess

_SERVE = """
import sys
from nodeside.trial.machine.guest.agent import GuestAgent
GuestAgent(int(sys.argv[1])).serve()
"""


@contextmanager
def agent() -> Iterator[tuple[MachineLink, int]]:
    """A real agent in a process of its own; its link and its process id."""
    ours, theirs = socket.socketpair()
    child = process.start(
        [sys.executable, "-c", _SERVE, str(theirs.fileno())],
        env={"PYTHONPATH": str(Path(nodeside.__file__).parent.parent)},
        stderr=sys.stderr.fileno(),
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    link = MachineLink(ours, lambda: ": because of the test")
    try:
        yield link, child.pid
    finally:
        process.kill_group(child.pid)
        child.wait(10)
        link.close()


@pytest.fixture
def link() -> Iterator[MachineLink]:
    with agent() as (link, _):
        link.await_hello(10)
        yield link


def start(link: MachineLink, *argv: str, terminal: bool = False) -> GuestProcess:
    child = GuestProcess(link, argv, None, None)
    child.begin(env={"PATH": "/usr/bin:/bin"}, cwd="/", pty=terminal)
    return child


def test_output_and_errors_are_kept_apart(link: MachineLink) -> None:
    done = start(link, "sh", "-c", "echo out; echo err >&2; exit 3").wait(10)

    assert (done.output, done.errors, done.exit_code) == ("out\n", "err\n", 3)


def test_lines_are_handed_over_as_they_come(link: MachineLink) -> None:
    lines: list[str] = []
    child = GuestProcess(link, ["sh", "-c", "echo one; printf two"], lines.append, None)
    child.begin(env={"PATH": "/usr/bin:/bin"}, cwd="/")

    child.wait(10)

    assert lines == ["one", "two"]


def test_processes_run_at_the_same_time(link: MachineLink) -> None:
    first = start(link, "cat")
    second = start(link, "echo", "second")

    assert second.wait(10).output == "second\n"
    first.write(b"first\n")
    first.write(None)
    assert first.wait(10).output == "first\n"


def test_a_signal_ends_a_process_and_is_its_exit_code(link: MachineLink) -> None:
    child = start(link, "sleep", "60")
    assert child.poll() is None

    child.kill()

    assert child.wait(10).exit_code == -9


def test_a_command_that_is_not_there_says_so(link: MachineLink) -> None:
    done = start(link, "no-such-command").wait(10)

    assert done.exit_code == 127
    assert "No such file or directory" in done.errors


def test_a_wait_has_a_deadline_and_the_process_goes_on(link: MachineLink) -> None:
    child = start(link, "cat")

    with pytest.raises(DeadlinePassed, match=r"timed out after 0\.\d+ s: cat"):
        child.wait(0.05)
    child.write(None)

    assert child.wait(10).exit_code == 0


@pytest.mark.slow
def test_large_output_arrives_whole(link: MachineLink) -> None:
    done = start(link, "head", "-c", "3000000", "/dev/zero").wait(30)

    assert len(done.output) == 3_000_000


def test_a_process_may_have_a_terminal(link: MachineLink) -> None:
    child = start(link, "sh", "-c", "tty; stty size", terminal=True)
    child.resize(40, 120)

    done = child.wait(10)

    assert done.output.startswith("/dev/pts/")


def test_files_are_written_and_read(link: MachineLink, tmp_path: Path) -> None:
    talk = link.send_request(
        "write", path=str(tmp_path / "a/b"), data="aGVsbG8=", mode=0o600, append=False
    )
    link.await_event(talk, "done", 10, "writing")
    assert (tmp_path / "a/b").read_text() == "hello"

    data = bytearray()
    talk = link.send_request(
        "read", path=str(tmp_path / "a/b"), on_data=lambda _, chunk: data.extend(chunk)
    )
    link.await_event(talk, "done", 10, "reading")
    assert data == b"hello"


def test_what_the_agent_cannot_do_is_an_error_with_its_reason(link: MachineLink) -> None:
    talk = link.send_request("read", path="/no/such/file")

    with pytest.raises(TrialError, match="No such file or directory: '/no/such/file'"):
        link.await_event(talk, "done", 10, "reading")


def test_every_wait_ends_when_the_machine_is_gone() -> None:
    with agent() as (link, pid):
        link.await_hello(10)
        child = start(link, "sleep", "60")
        process.kill_group(pid)

        with pytest.raises(
            MachineLost, match="before this was done: sleep 60: because of the test"
        ):
            child.wait(10)
        with pytest.raises(MachineLost):
            start(link, "true")
