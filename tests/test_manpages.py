"""The manual pages are those of the program, and man can read them."""

from __future__ import annotations

import re

import pytest

from tests.manpages import DIRECTORY, _escaped, pages

PAGES = pages()


def test_what_is_checked_in_is_what_the_help_says() -> None:
    """python -m tests.manpages writes them."""
    there = {path.name: path.read_text() for path in DIRECTORY.iterdir()}

    assert there == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_only_requests_that_man_knows(name: str) -> None:
    requests = re.findall(r"^[.'](\S*)", PAGES[name], re.MULTILINE)

    assert set(requests) <= {"TH", "SH", "SS", "B", "BR", "PP", "TP", "nf", "fi"}
    assert [each for each in requests if each == "SH"]
    assert not re.search(r"(?<!\\)-[a-z]", PAGES[name].partition("\n")[2])


def test_what_looks_like_a_request_is_text() -> None:
    assert _escaped(".ex \\d --x") == "\\&.ex \\ed \\-\\-x"
