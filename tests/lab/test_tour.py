"""The figures of docs/tour.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodeside.system import process
from tests import TOP
from tests.lab import tour
from tests.lab.tour import Chapter, Record, Setting, Wait

HERE = Setting("2 cores", "1c0ffee")
CHAPTERS = [
    Chapter("A node reboots.", 61.7, [Wait("node-1 to be Ready", 40.2), Wait("edu", 12.0)], HERE),
    Chapter("Nothing is waited for.", 1.0, [], HERE, ("An event came.",)),
]
TITLES = [chapter.title for chapter in CHAPTERS]


def test_the_figures_take_the_place_of_those_before(tmp_path: Path) -> None:
    page = tmp_path / "tour.md"
    page.write_text(f"# Tour\n\n{tour.BEGIN}of before\n{tour.END}\n## After\n")
    for _ in range(2):
        tour.write(page, CHAPTERS, ["A node that burns"])
    text = page.read_text()
    assert "| A node reboots. | 62 | node-1 to be Ready | 40 | 1c0ffee |" in text
    assert "| Nothing is waited for. | 1 | nothing | 0 | 1c0ffee |" in text
    assert text.startswith("# Tour\n")
    assert text.count("\n\nAn event came.\n\n| ") == 1
    assert text.endswith("\n## After\n")
    assert "of before" not in text
    assert text.count("On 2 cores: 2 chapters, 1 minutes in all.") == 1
    assert "\n\nNot told yet: A node that burns.\n\n" in text


def test_a_chapter_is_kept_until_it_is_told_again(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.json")
    assert record.read() == {}
    for chapter in reversed(CHAPTERS):
        record.keep(chapter, TITLES)
    again = Chapter(CHAPTERS[0].title, 5.0, [], Setting("4 cores", "2c0ffee"))
    assert record.keep(again, TITLES) == [again, CHAPTERS[1]]
    assert list(record.read().values()) == [again, CHAPTERS[1]]
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
    assert record.keep(again, TITLES[:1]) == [again], "a chapter that is no more is forgotten"


def test_a_chapter_says_which_commit_it_was_told_of(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
        process.run(["git", "-C", str(tmp_path), *identity, *arguments], timeout=60)

    git("init", "--quiet")
    for name in ("docs/tour.md", "story.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    commit = Setting.of("2 cores", tmp_path).commit
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    (tmp_path / "docs/tour.md").write_text("written by a chapter before")
    assert Setting.of("2 cores", tmp_path).commit == commit
    (tmp_path / "story.py").write_text("changed")
    assert Setting.of("2 cores", tmp_path).commit == f"{commit}+"


def test_a_page_without_a_place_for_figures_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "tour.md"
    page.write_text("# Tour\n")
    with pytest.raises(ValueError, match="has no place for figures"):
        tour.write(page, CHAPTERS)
    assert page.read_text() == "# Tour\n"


def test_the_page_of_the_project_has_a_place_for_figures() -> None:
    text = (TOP / "docs" / "tour.md").read_text()
    assert text.index(tour.BEGIN) < text.index(tour.END)
