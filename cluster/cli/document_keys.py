"""A document whose values are struck off as they are read, so that no key of it can get lost.

`nodeside-cluster import` reads through it; what is left at the end is said to the person. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodeside.spec.mistakes import FieldPath

_SHOWN = 120  # characters of a value that nothing was made of


@dataclass(frozen=True)
class DocumentPart:
    """A value at a path of a document; None where the document has nothing.

    `part` only goes down, and reads nothing. `text` and `whole` read the value, as does `entries`
    if the list is empty. A value of another type than the caller expects is left unread.
    """

    value: Any
    path: FieldPath = ()
    read: set[FieldPath] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.value)

    def part(self, *keys: str) -> DocumentPart:
        here = self
        for key in keys:
            below = here.value.get(key) if isinstance(here.value, Mapping) else None
            here = DocumentPart(below, (*here.path, key), self.read)
        return here

    def entries(self) -> list[DocumentPart]:
        """Return what a list holds."""
        if not isinstance(self.value, list):
            return []
        if not self.value:
            self.read.add(self.path)
        return [DocumentPart(each, (*self.path, n), self.read) for n, each in enumerate(self.value)]

    def text(self) -> str:
        """Return a scalar as text, "" if there is none."""
        if self.value is None or isinstance(self.value, Mapping | list):
            return ""
        self.read.add(self.path)
        return str(self.value)

    def texts(self) -> list[str]:
        """Return what a list of scalars holds."""
        return [text for each in self.entries() if (text := each.text())]

    def whole(self) -> Any:
        """Return the value with all that is below it."""
        self.read.add(self.path)
        return self.value

    def mapping(self) -> Mapping[str, Any]:
        """Return a mapping with all that is below it, an empty one if it is none."""
        return self.whole() if isinstance(self.value, Mapping) else {}

    def sequence(self) -> list[Any]:
        """Return a list with all that is below it, an empty one if it is none."""
        return self.whole() if isinstance(self.value, list) else []

    def unread(self) -> Iterator[DocumentPart]:
        """Yield the largest parts of which nothing was read, in the order of the document."""
        if self.path in self.read:
            return
        if not any(path[: len(self.path)] == self.path for path in self.read):
            yield self
            return
        for each in self.below():
            yield from each.unread()

    def below(self) -> Iterator[DocumentPart]:
        """Yield the values of a mapping or list; reads none of them."""
        for key, value in _key_value_pairs(self.value):
            yield DocumentPart(value, (*self.path, key), self.read)

    def brief(self) -> str:
        """Return the value as JSON, cut if it is long."""
        text = json.dumps(self.value, ensure_ascii=False, default=str)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _key_value_pairs(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)
