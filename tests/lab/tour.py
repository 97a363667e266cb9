"""docs/tour.md: what a long story took, chapter by chapter.

The page is prose; between its two marks is a table that a whole story writes anew. A story takes
hours, so each chapter that went well is kept (`Record`), and one that was broken off can be told to
its end another time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
    """What happened in it, how many seconds it took, what it waited for and what it found out."""

    title: str
    seconds: float
    waits: Sequence[Wait]
    remarks: Sequence[str] = ()

    @property
    def longest(self) -> Wait:
        return max(self.waits, key=lambda wait: wait.seconds, default=Wait("nothing", 0.0))


@dataclass(frozen=True)
class Tour:
    """A story that is whole, and what its figures hold for."""

    about: str
    chapters: Sequence[Chapter]

    @property
    def words(self) -> str:
        minutes = sum(chapter.seconds for chapter in self.chapters) / 60
        return (
            f"Made by `make lab-story` on {datetime.now(UTC):%Y-%m-%d}; do not edit. {self.about}, "
            f"{minutes:.0f} minutes in all."
        )


@dataclass(frozen=True)
class Record:
    """A file with the last telling of each chapter that went well."""

    path: Path

    def read(self) -> Mapping[str, Chapter]:
        """Chapters by their titles."""
        if not self.path.exists():
            return {}
        return {each["title"]: _chapter(each) for each in json.loads(self.path.read_text())}

    def keep(self, chapter: Chapter) -> None:
        """In the place of an earlier telling."""
        chapters = {**self.read(), chapter.title: chapter}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_text(json.dumps([asdict(each) for each in chapters.values()], indent=2))
        new.rename(self.path)


def _chapter(record: Mapping[str, Any]) -> Chapter:
    waits = [Wait(**wait) for wait in record["waits"]]
    return Chapter(record["title"], record["seconds"], waits, tuple(record["remarks"]))


TOUR = pytest.StashKey[Tour]()  # of the configuration
PASSED = pytest.StashKey[bool]()  # of a test


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
    remarks = [remark for chapter in told.chapters for remark in chapter.remarks]
    paragraphs = [told.words, *remarks, table(told.chapters)]
    new.write_text(
        f"{before}{begin}\n" + "".join(f"{each}\n\n" for each in paragraphs) + end + after
    )
    new.rename(page)
