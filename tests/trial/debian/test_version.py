"""Versions sort as dpkg sorts them; dpkg itself is the judge."""

from __future__ import annotations

import shutil

import pytest

from nodeside.system import process
from nodeside.trial.debian.version import DebianVersion

PAIRS = [
    ("6.1.0-47", "6.1.0-5"),
    ("6.1.0-9", "6.1.0-10"),
    ("6.12.9+deb12", "6.12.107+deb12"),
    ("6.1.192-2", "6.1.192-10"),
    ("1.0~rc1", "1.0"),
    ("1.0~rc1-1", "1.0~rc2-1"),
    ("2:1.0", "1:9.9"),
    ("1.0", "1.0-0"),
    ("1.0a", "1.0"),
    ("1.0+b1", "1.0a"),
]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_order_is_that_of_dpkg(left: str, right: str) -> None:
    if shutil.which("dpkg") is None:
        pytest.fail("dpkg is not installed: this host is not Debian or Ubuntu", pytrace=False)

    def dpkg_says(relation: str) -> bool:
        argv = ["dpkg", "--compare-versions", left, relation, right]
        return process.run(argv, timeout=10, check=False).exit_code == 0

    assert (DebianVersion(left) < DebianVersion(right)) == dpkg_says("lt")
    assert (DebianVersion(left) == DebianVersion(right)) == dpkg_says("eq")
    assert (DebianVersion(left) > DebianVersion(right)) == dpkg_says("gt")
