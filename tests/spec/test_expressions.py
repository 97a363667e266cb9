"""What RE2 refuses, named without RE2: never less than what makes Python's engine run for ever."""

from __future__ import annotations

import pytest
import re2

from nodeside.spec.expressions import beyond_re2

REFUSED = [
    ("a(?=b)", "(?= is look-around"),
    ("a(?!b)", "(?! is look-around"),
    ("(?<=a)b", "(?<= is look-around"),
    ("(?<!a)b", "(?<! is look-around"),
    (r"(a)\1", r"\1 is a backreference"),
    ("(?P<x>a)(?P=x)", "(?P= is a backreference"),
    ("(a)?(?(1)b|c)", "(?( is a backreference"),
    ("(?>a)", "(?> is possessive"),
    ("a++", "++ is possessive"),
    ("a?+", "?+ is possessive"),
    ("a{1,2}+", "{1,2}+ is possessive"),
    ("(?#why)a", "(?# is a comment"),
    ("(?x)a", "(?x is a flag"),
    ("(?ia)a", "(?ia is a flag"),
    ("(?u:a)", "(?u is a flag"),
    (r"a\Z", r"\Z is not supported; write \z"),
    (r"\u00e9", r"\u is not supported"),
    ("a{1001}", "{1001} repeats more than 1000 times"),
    ("a{0,99999}", "{0,99999} repeats more than 1000 times"),
]


@pytest.mark.parametrize(("pattern", "words"), REFUSED)
def test_what_re2_does_not_have_is_named_by_its_syntax(pattern: str, words: str) -> None:
    options = re2.Options()
    options.log_errors = False
    with pytest.raises(re2.error):
        re2.compile(pattern, options)

    assert beyond_re2(pattern) == words


@pytest.mark.parametrize(
    "pattern",
    [
        r"registered \d+ devices?$",
        r"^(\S+\s*)+: ready",
        "(?i)ready|(?:up)|(?P<what>done)",
        r"\(\?=a\)",
        r"a\++",
        r"[(?=\]*+]+",
        "[](?!]+",
        r"\\1",
        "a{3,1000}?",
        r"x\}+",
    ],
)
def test_what_both_understand_is_taken(pattern: str) -> None:
    assert re2.compile(pattern)
    assert beyond_re2(pattern) == ""
