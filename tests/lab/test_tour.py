"""The figures of docs/tour.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import TOP
from tests.lab import tour
from tests.lab.tour import Chapter, Record, Tour, Wait

CHAPTERS = [
    Chapter("A node reboots.", 61.7, [Wait("node-1 to be Ready", 40.2), Wait("edu", 12.0)]),
    Chapter("Nothing is waited for.", 1.0, [], ("An event came.",)),
]


def test_the_figures_take_the_place_of_those_before(tmp_path: Path) -> None:
    page = tmp_path / "tour.md"
    page.write_text(f"# Tour\n\n{tour.BEGIN}old\n{tour.END}\n## After\n")
    for _ in range(2):
        tour.write(page, Tour("2 cores", CHAPTERS))
    text = page.read_text()
    assert "| A node reboots. | 62 | node-1 to be Ready | 40 |" in text
    assert "| Nothing is waited for. | 1 | nothing | 0 |" in text
    assert text.startswith("# Tour\n")
    assert text.count("\n\nAn event came.\n\n| ") == 1
    assert text.endswith("\n## After\n")
    assert "old" not in text
    assert text.count("2 cores, 1 minutes in all") == 1


def test_a_chapter_is_kept_until_it_is_told_again(tmp_path: Path) -> None:
    record = Record(tmp_path / "story" / "record.json")
    assert record.read() == {}
    for chapter in CHAPTERS:
        record.keep(chapter)
    again = Chapter(CHAPTERS[0].title, 5.0, [])
    record.keep(again)
    assert list(record.read().values()) == [again, CHAPTERS[1]]
    assert [path.name for path in record.path.parent.iterdir()] == ["record.json"]


def test_a_page_without_a_place_for_figures_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "tour.md"
    page.write_text("# Tour\n")
    with pytest.raises(ValueError, match="has no place for figures"):
        tour.write(page, Tour("", CHAPTERS))
    assert page.read_text() == "# Tour\n"


def test_the_page_of_the_project_has_a_place_for_figures() -> None:
    text = (TOP / "docs" / "tour.md").read_text()
    assert text.index(tour.BEGIN) < text.index(tour.END)
