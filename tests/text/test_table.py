"""Tables for people: aligned, without a frame, the last column wrapped."""

from __future__ import annotations

import io
import os
import re

import pytest

from nodeside.text.table import bad, busy, good, table


def test_columns_are_aligned_and_the_header_with_them() -> None:
    rows = [("loaded", "-", "edu not loaded"), ("cached", "served", "the cache holds it")]
    assert table(rows, header=("RUNG", "", "WHY"), width=80) == (
        "RUNG            WHY\nloaded  -       edu not loaded\ncached  served  the cache holds it"
    )


def test_a_long_last_column_is_wrapped_below_itself() -> None:
    assert table([("reason", "one two three four five six seven")], width=34) == (
        "reason  one two three four five\n        six seven"
    )


def test_lines_of_a_cell_stay_lines() -> None:
    assert table([("error", "first\nsecond")], width=80) == "error  first\n       second"


def test_a_narrow_terminal_leaves_room_for_words() -> None:
    rows = [("a" * 30, "words that need some room")]
    assert table(rows, width=40) == f"{'a' * 30}\n    words that need some room"


RELEASE = "5.14.0-427.49.1.el9_4.x86_64"
HEADER = ("DRIVER", "OS VERSION", "KERNEL", "NODES", "UPDATED", "READY", "FAILED", "LINK", "WHY")
POOL = ("edu", "418.94.202501221327-0", RELEASE, "4", "3", "3", "0", "image-stream")


def test_a_row_that_is_too_long_goes_on_in_further_lines() -> None:
    why = f"no toolkit image for {RELEASE}: wait for the tag, or name an image"

    lines = table([(*POOL, why), (*POOL, "")], header=HEADER, width=80).splitlines()

    assert lines == [
        "DRIVER  OS VERSION             KERNEL                        NODES  UPDATED",
        "    READY  FAILED  LINK          WHY",
        f"edu     418.94.202501221327-0  {RELEASE}  4      3",
        "    3      0       image-stream  no toolkit image for",
        f"                                 {RELEASE}: wait for the tag,",
        "                                 or name an image",
        f"edu     418.94.202501221327-0  {RELEASE}  4      3",
        "    3      0       image-stream",
    ]


def test_sentences_are_beside_their_rows_or_all_of_them_below() -> None:
    header, rows = ("DRIVER", "STATUS", "WHY"), [("edu", "Failed", f"-> {'so ' * 9}"), ("e", "Ok")]

    beside = table(rows, header=header, width=50, below=True)
    under = table(rows, header=header, width=40, below=True)

    assert beside.splitlines()[0] == "DRIVER  STATUS  WHY"
    assert beside.splitlines()[1] == f"edu     Failed  -> {'so ' * 9}".rstrip()
    assert under.splitlines() == [
        "DRIVER  STATUS",
        "edu     Failed",
        f"    -> {'so ' * 9}".rstrip(),
        "e       Ok",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 132, 200])
def test_no_word_is_cut_however_narrow_the_terminal(width: int) -> None:
    why = f"no toolkit image for {RELEASE}, as in https://example.com/{'x' * 60}-{'y' * 60}"
    text = table([(*POOL, why)], header=HEADER, width=width)

    assert set(text.split()) == {*HEADER, *POOL, *why.split()} - {"OS VERSION"} | {"OS", "VERSION"}
    for line in text.splitlines():
        assert len(line) <= width or len(line.split()) == 1 or width < 40


def test_without_a_terminal_a_row_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda _: os.terminal_size((0, 0)))

    assert len(table([(*POOL, "short")], header=HEADER).splitlines()) == 2


def test_a_long_cell_makes_no_other_line_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda _: os.terminal_size((0, 0)))
    long = "x" * 20_000

    text = table([(long, "no", "a\n" * 500), *[("y", "ok", "b")] * 500])

    assert long in text
    assert len(text) < 300_000


def test_short_rows_and_empty_cells_are_filled() -> None:
    assert table([("a", "b", "c"), ("d",)], width=80) == "a  b  c\nd"


def test_no_row_has_white_space_at_its_end() -> None:
    text = table([("a", "", ""), ("long", "x", "y")], header=("A", "B", ""), width=80)
    assert all(line == line.rstrip() for line in text.splitlines())


def test_indentation_inside_a_cell_is_kept() -> None:
    assert table([("log", "main\n    inner")], width=80) == "log  main\n         inner"


def test_nothing_is_nothing() -> None:
    assert table([]) == ""
    assert table([], header=("A", "B"), width=80) == "A  B"


def test_a_cell_moves_no_cursor() -> None:
    assert table([("a\x1b[2J", "b\rc")], width=80) == "a\\x1b[2J  b\\rc"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_word_has_its_color_and_columns_stay_aligned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [("edu", "ok", "it works"), ("edu-peer", "FAILED", "ready")]
    plain = table(rows, width=80)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Terminal())

    painted = table(rows, width=80)

    assert "\x1b[32mok\x1b[0m" in painted
    assert "\x1b[31mFAILED\x1b[0m" in painted
    assert painted.endswith("\x1b[32mready\x1b[0m")
    assert re.sub(r"\x1b\[\d+m", "", painted) == plain


def test_a_title_is_no_state_and_a_count_of_failures_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Terminal())
    header = ("DRIVER", "READY", "FAILED", "STATUS")

    healthy = table([("edu", "3", "0", "Ready")], header=header, width=80)
    failing = table([("edu", "2", "10", "NodesFailed")], header=header, width=80)

    assert "\x1b[31m" not in healthy
    assert healthy.splitlines()[0] == "DRIVER  READY  FAILED  STATUS"
    assert failing.splitlines()[1] == "edu     2      \x1b[31m10\x1b[0m      NodesFailed"


def test_a_writer_chooses_colors_and_then_no_word_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may be called `ready`, and `Ready` may be about its stages."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Terminal())

    first, second = table(
        [("ready", busy("Ready"), ""), ("ok", bad("a\x1bb"), "failed")], width=80
    ).splitlines()

    assert first == "ready  \x1b[33mReady\x1b[0m"
    assert second == "ok     \x1b[31ma\\x1bb\x1b[0m  failed"
    assert good("all is well").painted() == "\x1b[32mall is well\x1b[0m"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_color_gets_none(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Terminal())

    assert "\x1b" not in table([("edu", "ok")], width=80)
