"""What a server means that refuses."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from nodeside.http import status as http_status


@pytest.mark.parametrize("body", [b"", b"<html>502</html>", b'"text"', b"[" * 100_000, b"\xff"])
def test_what_is_no_status_has_no_words(body: bytes) -> None:
    assert http_status.message_of(http_status.document_of(body)) == ""


def test_the_words_of_a_status_are_one_line_without_escape_sequences() -> None:
    assert http_status.message_of({"message": "denied:\n  \x1b[31mno"}) == "denied: [31mno"
    assert len(http_status.message_of({"message": "x" * 9000})) == http_status.WORDS_LIMIT


@pytest.mark.parametrize(
    ("status", "passes"),
    [(400, False), (401, True), (403, False), (404, False), (408, True), (409, True), (410, True),
     (415, False), (422, False), (425, True), (429, True), (500, True), (503, True)],
)  # fmt: skip
def test_some_refusals_pass_by_themselves(status: int, passes: bool) -> None:
    assert http_status.is_transient(status) is passes


def test_a_field_that_the_definition_lacks_is_no_failure_of_the_server() -> None:
    said = "failed to create typed patch object (/x): .status.mood: field not declared in schema"
    assert http_status.correct_status(500, said) == 400
    assert http_status.correct_status(500, "etcdserver: leader changed") == 500


def test_retry_after_is_seconds_or_a_date() -> None:
    assert http_status.retry_after_seconds("7") == 7
    assert http_status.retry_after_seconds(formatdate(time.time() - 60, usegmt=True)) == 0
    later = http_status.retry_after_seconds(formatdate(time.time() + 3600, usegmt=True))
    assert later is not None
    assert 0 < later <= 3600


def test_a_server_that_asks_for_a_day_is_asked_again_in_five_minutes() -> None:
    tomorrow = formatdate(time.time() + 86400, usegmt=True)

    assert (
        http_status.retry_after_seconds("86400") == http_status.retry_after_seconds(tomorrow) == 300
    )


@pytest.mark.parametrize("header", ["", "soon", "-1", "²", "1e9", "9" * 10])
def test_retry_after_that_says_nothing_is_none(header: str) -> None:
    assert http_status.retry_after_seconds(header) is None
