"""The order of version strings as Debian defines it.

https://www.debian.org/doc/debian-policy/ch-controlfields.html#version
"""

from __future__ import annotations

import re
from functools import total_ordering

_END = ((0,), 0)
_PARTS = re.compile(r"(\d+)|(\D+)")


def _character_weight(char: str) -> int:
    """Return the weight of a character: `~` sorts before the end, letters before the rest."""
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256


@total_ordering
class DebianVersion:
    """A version that compares as in dpkg. Kernel releases are compared this way too."""

    def __init__(self, text: str) -> None:
        self.text = text
        epoch, _, rest = text.rpartition(":")
        upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
        self._key = (int(epoch or 0), _version_key(upstream), _version_key(revision))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DebianVersion) and self._key == other._key

    def __lt__(self, other: DebianVersion) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"DebianVersion({self.text!r})"


def _version_key(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return alternating runs of non-digits and digits. 0 ends a run, so `~` sorts below it."""
    pairs: list[tuple[tuple[int, ...], int]] = []
    letters: tuple[int, ...] = (0,)
    for number, other in _PARTS.findall(text):
        if other:
            letters = (*(_character_weight(char) for char in other), 0)
        else:
            pairs.append((letters, int(number)))
            letters = (0,)
    pairs.append((letters, 0))
    while pairs and pairs[-1] == _END:  # a missing number equals 0
        pairs.pop()
    return (*pairs, _END)
