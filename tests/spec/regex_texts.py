"""Texts that a regular expression of the model takes, each made from one number.

Hypothesis makes them by a choice for each character and each repeat, and a driver has hundreds of
such texts. The expressions are plain (`nodeside/spec/patterns.py`): no look-around, no references.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from random import Random
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

_MORE: Final = 3  # usual repeats beyond the least
_MOST: Final = 300  # repeats, where the expression has no limit, or a higher one
_RARE: Final = 12  # of so many repeats one is as long as allowed, and of characters one is any
_PLAIN: Final = [chr(code) for code in range(0x20, 0x7F)]
# Controls, a next line, spaces, a soft hyphen, ß, İ, a digit of Arabic, and wide ones.
_ODD: Final = [*map(chr, (9, 10, 0, 0x1F, 0x7F, 0x85, 0xA0, 0xAD, 0xDF, 0x130, 0x660, 0x2028))]
_WIDE: Final = [*map(chr, (0xFEFF, 0xFFFD, 0x1F600, 0x10FFFF))]
_PLANES: Final = (0x250, 0x10000, 0x110000)

_Fits = Callable[[str], object]


def text_of(regex: str, number: int) -> str:
    """A text that fits the whole expression; zero makes the smallest."""
    random = Random(number)
    return "".join(_texts(_parsed(regex), random, smallest=number == 0))


@lru_cache
def _parsed(regex: str) -> Any:
    return parser.parse(regex)


def _texts(parsed: Any, random: Random, *, smallest: bool) -> list[str]:
    found: list[str] = []
    for kind, value in parsed:
        match kind:
            case op.LITERAL:
                found.append(chr(value))
            case op.NOT_LITERAL | op.IN | op.ANY:
                found.append(_character(kind, value, random, smallest=smallest))
            case op.AT:
                pass  # the beginning and the end
            case op.SUBPATTERN:
                found += _texts(value[-1], random, smallest=smallest)
            case op.BRANCH:
                found += _texts(
                    value[1][0] if smallest else random.choice(value[1]), random, smallest=smallest
                )
            case op.MAX_REPEAT | op.MIN_REPEAT:
                least, most, inner = value
                for _ in range(least if smallest else _count(least, most, inner, random)):
                    found += _texts(inner, random, smallest=smallest)
            case _:
                raise AssertionError(f"{kind} in a regular expression of the model")
    return found


def _count(least: int, most: int, inner: Any, random: Random) -> int:
    """How often a part is repeated: a single character now and then as often as it may be."""
    is_character = len(inner) == 1 and inner[0][0] in (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)
    if is_character and random.randrange(_RARE) == 0:
        return min(most, least + _MOST)
    return random.randint(least, min(most, least + _MORE))


def _character(kind: Any, value: Any, random: Random, *, smallest: bool) -> str:
    """One of what fits: mostly of ASCII, but now and then any of Unicode."""
    fits, plain, odd = _fitting(kind, value if kind is op.NOT_LITERAL else tuple(value or ()))
    if smallest:
        return min(plain or odd, key=lambda each: (not each.isalnum(), each))
    if plain and not (odd and random.randrange(_RARE) == 0):
        return random.choice(plain)
    any_one = chr(random.randrange(random.choice(_PLANES)))
    is_text = not 0xD800 <= ord(any_one) < 0xE000  # half of a character in UTF-16 is none
    return any_one if is_text and fits(any_one) else random.choice(odd)


@lru_cache
def _fitting(kind: Any, value: Any) -> tuple[_Fits, list[str], list[str]]:
    """What fits one place of an expression, and which of the characters of both kinds do."""
    fits = _compiled(kind, value).fullmatch
    return (
        fits,
        [each for each in _PLAIN if fits(each)],
        [each for each in (*_ODD, *_WIDE) if fits(each)],
    )


def _compiled(kind: Any, value: Any) -> re.Pattern[str]:
    if kind is op.ANY:
        return re.compile(".")
    if kind is op.NOT_LITERAL:
        return re.compile(f"[^{re.escape(chr(value))}]")
    return re.compile(f"[{''.join(_source(*part) for part in value)}]")


def _source(kind: Any, value: Any) -> str:
    match kind:
        case op.NEGATE:
            return "^"
        case op.LITERAL:
            return re.escape(chr(value))
        case op.RANGE:
            return "-".join(re.escape(chr(end)) for end in value)
    raise AssertionError(f"{kind} in a class of a regular expression of the model")
