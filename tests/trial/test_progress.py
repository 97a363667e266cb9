"""What a guest says reaches the terminal as text, whatever it holds."""

from __future__ import annotations

import io

import pytest

from nodeside.cli import exit_on_error
from nodeside.trial import result
from nodeside.trial.errors import TrialError
from nodeside.trial.pod import Consumed
from nodeside.trial.progress import Progress
from tests.trial.runs import run

CLIPBOARD = "\x1b]52;c;Y3VybCBldmlsfHNo\x07"


def test_a_guest_cannot_write_the_clipboard_with_a_line() -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream)
    progress.line("kernel  |", f"edu:\t{CLIPBOARD}")
    progress.say(CLIPBOARD)
    assert "\x1b" not in stream.getvalue()
    assert "\x07" not in stream.getvalue()
    assert stream.getvalue().startswith("kernel  | edu:\t\\x1b]52;c;")


def test_a_guest_cannot_write_the_clipboard_with_the_result() -> None:
    shown = result.as_table(
        [
            run(
                report={"state": "ready", "message": CLIPBOARD, "notes": [CLIPBOARD]},
                commands=(Consumed(("c",), 0, f"one\n{CLIPBOARD}"),),
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
