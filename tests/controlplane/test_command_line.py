"""`python -m tests.controlplane` with words that it does not know."""

from __future__ import annotations

import pytest

from tests.controlplane import __main__ as command_line


@pytest.mark.parametrize("word", ["--help", "celan"])
def test_a_word_that_it_does_not_know_starts_nothing(
    word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["controlplane", word])

    assert command_line.main() == 2
    assert capsys.readouterr().err == "usage: python -m tests.controlplane [clean]\n"
