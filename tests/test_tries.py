"""How many examples are tried, by profile."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.tries import is_tried, sampled, tries

pytestmark = pytest.mark.usefixtures("profile_kept")


def test_the_quick_profile_tries_a_tenth_and_the_random_one_more_than_all() -> None:
    tried = {}
    for profile in ("quick", "nodeside", "random"):
        settings.load_profile(profile)
        tried[profile] = (tries(3), tries(60), settings().max_examples)

    assert tried == {"quick": (1, 6, 10), "nodeside": (3, 60, 100), "random": (7, 150, 250)}


def test_only_the_random_profile_tries_others_in_each_run() -> None:
    derandomized = {}
    for profile in ("quick", "nodeside", "random"):
        settings.load_profile(profile)
        derandomized[profile] = settings().derandomize

    assert derandomized == {"quick": True, "nodeside": True, "random": False}


def test_of_many_checks_of_one_kind_the_quick_profile_makes_each_tenth_and_others_all() -> None:
    tried = {}
    for profile in ("quick", "nodeside", "random"):
        settings.load_profile(profile)
        tried[profile] = [number for number in range(1, 31) if is_tried(number)]

    assert tried["quick"] == [10, 20, 30]
    assert tried["nodeside"] == tried["random"] == [*range(1, 31)]


def test_of_sampled_cases_all_are_there_and_the_others_are_slow() -> None:
    first, *others = sampled(["a", "b", ("c", 3), "d"], 3)

    assert (first, others[2]) == ("a", "d")
    assert [other.values for other in others[:2]] == [("b",), ("c", 3)]
    assert [[mark.name for mark in other.marks] for other in others[:2]] == [["slow"]] * 2
