"""docs/tour.md: what a long story took, chapter by chapter.

The page is prose; between its two marks is a table with the last telling of each chapter that went
well. A story takes hours, so the table is written chapter by chapter, from a record beside the page
(`Record`), and each row says which commit it was told of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.page import markdown_table
from nodeside.system import process

BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->\n"
HEADER = ("what happens", "seconds", "longest wait", "seconds", "commit")


@dataclass(frozen=True)
class Wait:
    """For what, and for how many seconds."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Setting:
    """Where and of what a story is told: its figures hold for that."""

    machine: str  # cores, kernels, outages
    commit: str

    @staticmethod
    def of(machine: str, checkout: Path) -> Setting:
        """Of a checkout; a `+` follows the commit if the sources differ from it."""
        commit = _git(checkout, "rev-parse", "--short", "HEAD")
        is_changed = _git(checkout, "status", "--porcelain", "--", ".", ":!docs")
        return Setting(machine, f"{commit}+" if is_changed else commit)


@dataclass(frozen=True)
class Chapter:
    """What happened in it, how many seconds it took, what it waited for and what it found out."""

    title: str
    seconds: float
    waits: Sequence[Wait]
    setting: Setting
    remarks: Sequence[str] = ()

    @property
    def longest(self) -> Wait:
        return max(self.waits, key=lambda wait: wait.seconds, default=Wait("nothing", 0.0))


@dataclass(frozen=True)
class Record:
    """A file with the last telling of each chapter that went well."""

    path: Path

    def read(self) -> Mapping[str, Chapter]:
        """Chapters by their titles."""
        if not self.path.exists():
            return {}
        return {each["title"]: _chapter(each) for each in json.loads(self.path.read_text())}

    def keep(self, chapter: Chapter, titles: Sequence[str]) -> Sequence[Chapter]:
        """In the place of an earlier telling; return all that have one of the titles, in order."""
        told = {**self.read(), chapter.title: chapter}
        chapters = [told[title] for title in titles if title in told]
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_text(json.dumps([asdict(each) for each in chapters], indent=2) + "\n")
        new.rename(self.path)
        return chapters


def _chapter(record: Mapping[str, Any]) -> Chapter:
    return Chapter(
        title=record["title"],
        seconds=record["seconds"],
        waits=[Wait(**wait) for wait in record["waits"]],
        setting=Setting(**record["setting"]),
        remarks=tuple(record["remarks"]),
    )


def _git(checkout: Path, *arguments: str) -> str:
    return process.run(["git", "-C", str(checkout), *arguments], timeout=60).output.strip()


PASSED = pytest.StashKey[bool]()  # of a test


def words(chapters: Sequence[Chapter]) -> str:
    """What the figures hold for."""
    minutes = sum(chapter.seconds for chapter in chapters) / 60
    machines = "; or on ".join(sorted({chapter.setting.machine for chapter in chapters}))
    return (
        f"Made by `make lab-story`; do not edit. On {machines}: "
        f"{len(chapters)} chapters, {minutes:.0f} minutes in all."
    )


def table(chapters: Sequence[Chapter]) -> str:
    """In Markdown."""
    rows = [
        (
            chapter.title,
            f"{chapter.seconds:.0f}",
            chapter.longest.what,
            f"{chapter.longest.seconds:.0f}",
            chapter.setting.commit,
        )
        for chapter in chapters
    ]
    return markdown_table(HEADER, rows)


def write(page: Path, chapters: Sequence[Chapter], untold: Sequence[str] = ()) -> None:
    """Put the figures between the marks of a page. Raises ValueError if it has none."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for figures: {BEGIN.strip()} … {END.strip()}")
    new = page.with_name(f".{page.name}.new")
    remarks = [remark for chapter in chapters for remark in chapter.remarks]
    missing = [f"Not told yet: {'; '.join(untold)}."] if untold else []
    paragraphs = [words(chapters), *remarks, table(chapters), *missing]
    new.write_text(
        f"{before}{begin}\n" + "".join(f"{each}\n\n" for each in paragraphs) + end + after
    )
    new.rename(page)
