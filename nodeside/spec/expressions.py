"""Find what RE2 refuses in a Python regular expression, without using RE2.

The controller matches logs with RE2, whose search time is proportional to the text. RE2 is not
available on a node or a laptop, so this module recognizes by syntax what would make a search grow
without bound. The controller asks RE2 itself.
"""

from __future__ import annotations

import re
from typing import Final

EXPECTED: Final = (
    "expected a regular expression in RE2 syntax, without look-around and backreferences"
)

# Escapes and character classes first: their content is not an operator.
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
_REPEATS = 1000  # RE2 refuses higher repeat counts


def beyond_re2(pattern: str) -> str:
    """Return the first construct in a Python expression that RE2 does not have, or ""."""
    return next(filter(None, map(_refusal_message, _TOKEN.finditer(pattern))), "")


def _refusal_message(token: re.Match[str]) -> str:
    text, group = token.group(), token["group"]
    if token["reference"] or group in ("P=", "("):
        return f"{text} is a backreference"
    if token["escape"]:
        instead = r"; write \z" if token["escape"] == "Z" else ""
        return f"{text} is not supported{instead}"
    if token["possessive"] or group == ">":
        return f"{text} is possessive"
    if group == "#":
        return f"{text} is a comment"
    if group:
        return f"{text} is {'a flag' if group[-1].isalpha() else 'look-around'}"
    counts = (token["least"] or "0", token["most"] or "0")
    too_many = any(len(count) > 4 or int(count) > _REPEATS for count in counts)
    return f"{text} repeats more than {_REPEATS} times" if too_many else ""
