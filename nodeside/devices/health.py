"""What the health file of a device must say.

A regular expression is searched for in a child with a deadline. If it does not come to an end on a
text, only the devices with that text are unhealthy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from nodeside.errors import SystemRefused
from nodeside.spec.devices import DeviceHealth
from nodeside.system.regex_search import search_texts

_PATIENCE = 10.0  # seconds for all texts of a resource
_TOGETHER, _ALONE = 5.0, 2.0  # seconds for all of them at once, and for one
_SHOWN = 256  # characters of a text


def judge_texts(health: DeviceHealth, texts: Iterable[str]) -> Mapping[str, str]:
    """Return for each text why a device that says it is unhealthy; "" if it is not.

    It takes a bit more than 10 s if the expression does not come to an end.
    """
    distinct = tuple(dict.fromkeys(texts))
    if not health.matches:
        return {
            text: _problem_unless(text == health.value.strip(), health, text) for text in distinct
        }
    ends = time.monotonic() + _PATIENCE
    try:
        found = search_texts(health.matches, *distinct, timeout=_TOGETHER)
    except SystemRefused:
        return {text: _judge_alone(health, text, ends - time.monotonic()) for text in distinct}
    return {
        text: _problem_unless(fits, health, text)
        for text, fits in zip(distinct, found, strict=True)
    }


def no_answer_message(health: DeviceHealth) -> str:
    """Return why a device is unhealthy whose file is missing or cannot be read."""
    return f"{health.path} says nothing, not {_expected_in_words(health)}"


def _judge_alone(health: DeviceHealth, text: str, left: float) -> str:
    if left <= 0:
        return f"{health.path} was not judged, since others took {_PATIENCE:g} s"
    try:
        (fits,) = search_texts(health.matches, text, timeout=min(_ALONE, left))
    except SystemRefused as exc:
        return f"{health.path} cannot be judged: {exc}"
    return _problem_unless(fits, health, text)


def _problem_unless(fits: bool, health: DeviceHealth, text: str) -> str:
    return "" if fits else f"{health.path} says {text[:_SHOWN]!r}, not {_expected_in_words(health)}"


def _expected_in_words(health: DeviceHealth) -> str:
    return f"a match of {health.matches}" if health.matches else repr(health.value.strip())
