"""What of Python's regular expressions RE2 refuses, found without RE2.

The controller judges logs with RE2, whose searches take time in proportion to the text. Nothing on
a node or a laptop has it, so what would make a search grow without bound is named here, by its
syntax; the controller asks RE2 itself. Called by rules.py.
"""

from __future__ import annotations

import re
from typing import Final

EXPECTED: Final = "expected a regular expression of RE2, without look-around and backreferences"

# Escapes and character classes first: what is inside of them is no operator.
_TOKEN = re.compile(
    r"""
    \\(?P<reference>[1-9])
    | \\(?P<escape>[ZuUN])
    | \\.
    | \[\^?\]?(?:\\.|[^\]\\])*\]
    | \(\?(?P<group>P=|<?[=!]|[>(\#]|[a-zA-Z]*[aLux])
    | (?:[*+?]|\{[0-9]*,?[0-9]*\})(?P<possessive>\+)
    | \{(?P<least>[0-9]*),?(?P<most>[0-9]*)\}
    """,
    re.VERBOSE | re.DOTALL,
)
_REPEATS = 1000  # RE2 refuses more of them


def beyond_re2(pattern: str) -> str:
    """The first thing in an expression of Python that RE2 does not have, or ""."""
    return next(filter(None, map(_refusal, _TOKEN.finditer(pattern))), "")


def _refusal(found: re.Match[str]) -> str:
    text, group = found.group(), found["group"]
    if found["reference"] or group in ("P=", "("):
        return f"{text} is a backreference"
    if found["escape"]:
        instead = r"; write \z" if found["escape"] == "Z" else ""
        return f"{text} has no meaning there{instead}"
    if found["possessive"] or group == ">":
        return f"{text} is possessive"
    if group == "#":
        return f"{text} is a comment"
    if group:
        return f"{text} is {'a flag' if group[-1].isalpha() else 'look-around'}"
    counts = (found["least"] or "0", found["most"] or "0")
    return f"{text} repeats more than {_REPEATS} times" if _too_many(counts) else ""


def _too_many(counts: tuple[str, ...]) -> bool:
    return any(len(count) > 4 or int(count) > _REPEATS for count in counts)
