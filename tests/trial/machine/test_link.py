"""A machine whose owner speaks for its agent: nothing hangs, crashes or takes all memory."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.trial.errors import MachineLost
from nodeside.trial.machine import machine as machines
from nodeside.trial.machine.link import MachineLink
from nodeside.trial.machine.machine import GuestProcess, _end_of, _Stream

LONG = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[MachineLink, socket.socket]]:
    ours, theirs = socket.socketpair()
    link = MachineLink(ours, lambda: "")
    yield link, theirs
    theirs.close()
    link.close()


def row(event: str, **fields: object) -> bytes:
    return json.dumps({"event": event, "id": 1, **fields}).encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "odd"),
    [
        (b'{"id": 1}\n', "an unknown event"),
        (b'{"event": ["exit"], "id": 1}\n', "an unknown event"),
        (b'{"event": "lost", "id": 1}\n', "an unknown event"),
        (b'{"event": "exit", "id": [1], "code": 0}\n', "an event without an id"),
        (b"[" * 100_000 + b"\n", "a line that is not JSON"),
        (b"7\n", "an unknown event"),
        (b"\xff\n", "a line that is not JSON"),
        (b"x" * (1 << 20), "an endless line"),
        (row("exit"), "exit without code"),
        (row("exit", code="0"), "exit without code"),
        (row("exit", code=10**40), "an impossible exit code"),
        (row("failed", message=7), "failed without message"),
        (row("output", data=7), "output without data"),
        (row("output", data="x"), "data that is not base64"),
        (row("done") * 200, "more events than were asked for"),
    ],
)
def test_an_odd_event_ends_every_wait_at_once(
    ends: tuple[MachineLink, socket.socket], line: bytes, odd: str
) -> None:
    link, theirs = ends
    process = GuestProcess(link, ["true"], None, None)

    def agent() -> None:
        theirs.recv(4096)
        theirs.sendall(row("started", pid=2))
        theirs.sendall(line)

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    process.begin(env={}, cwd="/", pty=False, container=None, join=None)
    with pytest.raises(MachineLost, match=f"its agent sent {odd}"):
        process.wait(LONG)
    thread.join(LONG)


def test_output_without_end_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_OUTPUT_BYTES", 10)
    monkeypatch.setattr(machines, "_LINE_BYTES", 8)
    said: list[str] = []
    stream = _Stream(said.append)
    for _ in range(4):
        stream.add(b"abc\nd")
    stream.add(b"endless line")
    stream.end()
    assert str(stream) == "abc\ndabc\nd\n[... 22 bytes cut]"
    assert said == ["abc", "dabc", "dabc", "dabc", "dendless line"]


def test_output_reaches_the_caller(ends: tuple[MachineLink, socket.socket]) -> None:
    link, theirs = ends
    process = GuestProcess(link, ["echo", "hi"], None, None)
    data = base64.b64encode(b"hi\n").decode()
    theirs.sendall(row("hello", id=0, boot_id="b"))
    assert link.await_hello(LONG)["boot_id"] == "b"

    def answer() -> None:
        """What comes before it was asked for is nobody's."""
        theirs.recv(4096)
        theirs.sendall(row("started", pid=2) + row("output", data=data) + row("exit", code=3))

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    process.begin(env={}, cwd="/", pty=False, container=None, join=None)
    done = process.wait(LONG)
    answering.join(LONG)
    assert (done.exit_code, done.output) == (3, "hi\n")


def test_of_a_console_without_end_the_end_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "_CONSOLE_BYTES", 4)
    (tmp_path / "serial").write_text("much and more")
    assert _end_of(tmp_path / "serial") == "more"
    assert _end_of(tmp_path / "none") == ""
