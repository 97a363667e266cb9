"""Soft dependencies as modules and modprobe.d write them."""

from __future__ import annotations

import pytest

from nodeside.driver.module.softdeps import Softdeps, parse_softdeps


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["pre: a-b c post: d"], Softdeps(("a_b", "c"), ("d",))),
        (["pre: a", "pre: b", "post: a"], Softdeps(("a", "b"), ("a",))),
        (["a b"], Softdeps()),
        (["post: platform:regulator_haptic pre:"], Softdeps((), ("platform:regulator_haptic",))),
        ([], Softdeps()),
    ],
)
def test_names_before_and_after(texts: list[str], expected: Softdeps) -> None:
    assert parse_softdeps(texts) == expected
