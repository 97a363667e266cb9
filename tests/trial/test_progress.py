"""What a guest says reaches the terminal as text, whatever it holds."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path

import pytest

from nodeside.cli import exit_on_error
from nodeside.trial import result
from nodeside.trial.errors import TrialError
from nodeside.trial.pod import CommandRun
from nodeside.trial.progress import Progress
from tests.trial.runs import run

CLIPBOARD = "\x1b]52;c;Y3VybCBldmlsfHNo\x07"


def test_a_guest_cannot_write_the_clipboard_with_a_line() -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream)
    progress.print_line("kernel  |", f"edu:\t{CLIPBOARD}")
    progress.print_step(CLIPBOARD)
    assert "\x1b" not in stream.getvalue()
    assert "\x07" not in stream.getvalue()
    assert stream.getvalue().startswith("kernel  | edu:\t\\x1b]52;c;")


def test_a_guest_cannot_write_the_clipboard_with_the_result() -> None:
    shown = result.as_table(
        [
            run(
                report={"state": "ready", "message": CLIPBOARD, "notes": [CLIPBOARD]},
                commands=(CommandRun(("c",), 0, f"one\n{CLIPBOARD}"),),
                splats=(f"BUG: {CLIPBOARD}",),
            )
        ]
    )
    assert shown.replace("\n", "").isprintable()
    assert shown.count("\\x1b]52") == 4


def test_a_guest_cannot_write_the_clipboard_with_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit), exit_on_error():
        raise TrialError(f"the console:\n    {CLIPBOARD}", hint=CLIPBOARD)
    said = capsys.readouterr().err
    assert said.replace("\n", "").isprintable()
    assert said.startswith("error: the console:\n    \\x1b]52")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_size_is_shown_as_it_grows_and_is_gone_afterwards(tmp_path: Path) -> None:
    stream = Terminal()
    progress = Progress(stream=stream)
    (tmp_path / "before").write_bytes(b"x" * 3_000_000)
    with progress.show_growth(tmp_path):
        (tmp_path / "fetched").write_bytes(b"x" * 5_000_000)
        deadline = time.monotonic() + 60
        while "5.0 MB, " not in stream.getvalue():
            assert time.monotonic() < deadline, stream.getvalue()
            time.sleep(0.05)
        progress.print_step("a line of another step")
    progress.print_step("after it")

    shown = [line.rpartition("\x1b[K")[2] for line in stream.getvalue().split("\n")[:-1]]
    assert [line.partition("\x1b[0m ")[2] for line in shown] == [
        "a line of another step",
        "after it",
    ]
    assert "8.0 MB" not in stream.getvalue()


def test_no_size_is_shown_where_there_is_no_terminal(tmp_path: Path) -> None:
    stream = io.StringIO()
    threads = threading.active_count()
    with Progress(stream=stream).show_growth(tmp_path):
        assert threading.active_count() == threads, "nobody looks"
    assert stream.getvalue() == ""
