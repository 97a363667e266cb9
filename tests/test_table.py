"""Tables for people: aligned, without a frame, the last column wrapped."""

from __future__ import annotations

from nodeside.table import table


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
    lines = table([("a" * 60, "words that need some room")], width=40).splitlines()
    assert lines[0].endswith("  words that need some")
    assert lines[1].strip() == "room"


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
