"""How many examples Hypothesis tries, by its profile.

nodeside  `make test`: the same ones in each run, since a change is judged by what it does
quick     `make unit`: a tenth of them
random    two and a half times as many, new in each run; `make chaos` tries many more histories

A test tries a hundred in `make test`, unless it says how many by `tries`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest
from hypothesis import settings

_USUAL: Final = 100
_PROFILES = {"nodeside": _USUAL, "quick": 10, "random": 250}


def register_profiles() -> None:
    """Hypothesis measures no times: a busy machine is no failure."""
    for name, most in _PROFILES.items():
        is_random = name == "random"
        settings.register_profile(name, deadline=None, derandomize=not is_random, max_examples=most)
    settings.load_profile("nodeside")


def tries(count: int) -> int:
    """So many examples in `make test`, and as many more or less in the other profiles."""
    return max(1, count * settings().max_examples // _USUAL)


def is_tried(number: int) -> bool:
    """Whether this one of many checks of one kind is made: all in `make test`, or each tenth."""
    profile = settings.default  # `settings()` would make another one, ten thousand times
    assert profile is not None
    return number % max(1, _USUAL // profile.max_examples) == 0


def sampled(cases: Iterable[object], every: int) -> list[Any]:
    """The cases of a test, one in so many of which `make unit` runs, from the first.

    A case of several arguments is a tuple.
    """
    return [
        case
        if number % every == 0
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
