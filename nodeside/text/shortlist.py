"""A few names out of many, for a message. Stdlib only."""

from __future__ import annotations

from collections.abc import Iterable


def shortlist(names: Iterable[str], shown: int, of: str = "") -> str:
    """Return `a, b and 3 more`, or with `of` (a plural) `a, b and 3 more nodes`."""
    every = list(names)
    rest = len(every) - shown
    first = ", ".join(every[:shown])
    if rest <= 0:
        return first
    return f"{first} and {rest} more {of.removesuffix('s') if rest == 1 else of}".rstrip()
