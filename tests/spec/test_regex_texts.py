"""The texts that the other tests try: they fit, and they are many and of all kinds."""

from __future__ import annotations

import re

import pytest

from nodeside.spec import patterns
from nodeside.spec.schema import Pattern
from tests.spec.regex_texts import text_of
from tests.tries import tries

REGEXES = sorted({each.regex for each in vars(patterns).values() if isinstance(each, Pattern)})


@pytest.mark.parametrize("regex", REGEXES)
def test_each_text_fits_the_expression_of_the_model(regex: str) -> None:
    texts = [text_of(regex, number) for number in range(tries(300))]

    assert [text for text in texts if re.fullmatch(regex, text) is None] == []
    if regex != patterns.POD_RESOURCE.regex:  # which has three
        assert len(set(texts)) > tries(100)


def test_one_number_always_makes_the_same_text() -> None:
    regex = patterns.SYSFS_PATH.regex

    assert text_of(regex, 7) == text_of(regex, 7) != text_of(regex, 8)


def test_a_repeat_is_now_and_then_as_long_as_it_may_be() -> None:
    regex = patterns.MODULE_NAME.regex
    lengths = {len(text_of(regex, number)) for number in range(300)}

    assert {1, patterns.MODULE_NAME_LIMIT} <= lengths


def test_a_class_that_excludes_some_characters_gives_any_others() -> None:
    text = "".join(text_of(r"^[^/ \x00-\x1f]+$", number) for number in range(2000))

    assert {"a", "~", "\x7f", "\U0010ffff"} <= {*text}
    assert len({*text}) > 500
