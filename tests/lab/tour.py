"""docs/tour.md: what a long story took, chapter by chapter. Pure but for `write`.

The page is prose; between its two marks is a table that a whole story writes anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.page import markdown_table

BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->\n"
HEADER = ("what happens", "seconds", "longest wait", "seconds")


@dataclass(frozen=True)
class Wait:
    """For what, and for how many seconds."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Chapter:
    """What happened in it, how many seconds it took, and what it waited for."""

    title: str
    seconds: float
    waits: Sequence[Wait]

    @property
    def longest(self) -> Wait:
        return max(self.waits, key=lambda wait: wait.seconds, default=Wait("nothing", 0.0))


@dataclass(frozen=True)
class Tour:
    """A story that is whole, what its figures hold for, and what else it found out."""

    about: str
    chapters: Sequence[Chapter]
    remarks: Sequence[str] = ()

    @property
    def words(self) -> str:
        minutes = sum(chapter.seconds for chapter in self.chapters) / 60
        return (
            f"Made by `make lab-story` on {datetime.now(UTC):%Y-%m-%d}; do not edit. {self.about}, "
            f"{minutes:.0f} minutes in all."
        )


TOUR = pytest.StashKey[Tour]()


def table(chapters: Sequence[Chapter]) -> str:
    """In Markdown."""
    rows = [
        (
            chapter.title,
            f"{chapter.seconds:.0f}",
            chapter.longest.what,
            f"{chapter.longest.seconds:.0f}",
        )
        for chapter in chapters
    ]
    return markdown_table(HEADER, rows)


def write(page: Path, told: Tour) -> None:
    """Put the figures between the marks of a page. Raises ValueError if it has none."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for figures: {BEGIN.strip()} … {END.strip()}")
    new = page.with_name(f".{page.name}.new")
    paragraphs = [told.words, *told.remarks, table(told.chapters)]
    new.write_text(
        f"{before}{begin}\n" + "".join(f"{each}\n\n" for each in paragraphs) + end + after
    )
    new.rename(page)
