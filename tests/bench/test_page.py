from __future__ import annotations

import pytest

from bench.page import Goal, Section, markdown_table, render


def test_a_table_has_its_numbers_on_the_right() -> None:
    assert markdown_table(("what", "time"), [("hello", "1 s")]).splitlines() == [
        "| what | time |",
        "| --- | ---: |",
        "| hello | 1 s |",
    ]


def test_a_cell_cannot_break_out_of_its_row() -> None:
    assert markdown_table(("what",), [("a | b\nc",)]).splitlines()[-1] == "| a \\| b c |"


def test_a_row_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2"):
        markdown_table(("what", "time"), [("hello",)])


def test_a_missed_goal_stands_out_at_the_top_of_the_page() -> None:
    goals = (Goal("help", "≤ 1 s", "0.5 s", True), Goal("build", "≤ 1.05", "1.20", False))
    section = Section("Builds", "Each in turn.", "| table |", "Why it is so.", goals)

    page = render("make bench", [("CPU", "two cores")], [section])

    assert "Made by `make bench`" in page
    assert "| CPU | two cores |" in page
    assert "| help | ≤ 1 s | 0.5 s | reached |" in page
    assert "| build | ≤ 1.05 | 1.20 | **missed** |" in page
    assert page.index("**missed**") < page.index("## Builds") < page.index("Why it is so.")
