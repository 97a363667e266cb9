"""The mistakes in a document, in words and in document order.

The reader collects every mistake before it reports any, so that a person corrects a file once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from nodeside.errors import SpecError
from nodeside.values import frozen

FieldPath = tuple[str | int, ...]

_USER = re.compile(r"//[^/?#]*@")  # the user part of a URL, with the password
_SHOWN = 50  # mistakes listed; the rest are only counted
_SHOWN_TEXT = 80  # characters shown of a wrong value
_PLAIN_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$")


@frozen
class Mistake:
    """One mistake at a path of the document."""

    path: FieldPath
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{path_in_words(self.path)}: {self.message}" + (
            f"; {self.hint}" if self.hint else ""
        )


@frozen
class Document:
    """A document as plain values, with their positions in the text.

    `lines` has the line of a path. `written` has the original text of a scalar if its value prints
    differently (`0x10`, `1.10`, `on`). `mistakes` are those found while reading the text.
    """

    where: str
    data: object
    lines: Mapping[FieldPath, int] = field(default_factory=dict)
    written: Mapping[FieldPath, str] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()

    def excerpt(self, path: FieldPath, value: object) -> str:
        """Return a wrong value as it was written, or in brief."""
        written = self.written.get(path)
        return _without_password(written) if written else in_brief(value)

    def line(self, path: FieldPath) -> int:
        """Return the line of a path, or of the nearest enclosing mapping; 0 if none is known."""
        nearest = (path[:length] for length in range(len(path), -1, -1))
        return next((self.lines[start] for start in nearest if start in self.lines), 0)


def mistakes_error(document: Document, mistakes: Sequence[Mistake]) -> SpecError:
    """Return the error that lists the mistakes, one per line, in document order.

    Mistakes after the first `_SHOWN` are only counted.
    """
    rows = sorted(mistakes, key=lambda mistake: _sort_key(document.data, mistake.path))
    places = [_place_in_words(document, mistake.path) for mistake in rows[:_SHOWN]]
    lines = [f"{place}: {mistake}" for place, mistake in zip(places, rows, strict=False)]
    if len(rows) > _SHOWN:
        lines.append(f"{document.where}: and {len(rows) - _SHOWN} more mistakes")
    hint = "every field is explained by: nodeside spec reference"
    return SpecError("\n".join(lines), hint=hint, places=places)


def path_in_words(path: FieldPath) -> str:
    """Return `$.spec.modules[0].name`; a key that is not a plain word is in brackets and quotes."""
    return "$" + "".join(_step_in_words(step) for step in path)


def in_brief(value: object) -> str:
    """Return a value in a few words: scalars as JSON, cut if long; containers by their kind."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool | float | str):
        return _shorten_text(
            _without_password(json.dumps(value, ensure_ascii=not _is_printable(value)))
        )
    try:
        return _shorten_text(str(value))
    except ValueError:  # an int with more digits than Python prints
        return "a very large number"


def _without_password(text: str) -> str:
    """Remove a password: more people read the log and a Driver's status than the document."""
    return _USER.sub("//…@", text)


def _is_printable(value: object) -> bool:
    """Return whether a terminal can show it: YAML or JSON text may hold half a surrogate pair."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return str(value).isprintable()


def _shorten_text(text: str) -> str:
    return text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}..."


def _step_in_words(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN_KEY.match(step) else f"[{in_brief(step)}]"


def _place_in_words(document: Document, path: FieldPath) -> str:
    line = document.line(path)
    return f"{document.where}:{line}" if line else document.where


def _sort_key(data: object, path: FieldPath) -> tuple[int, ...]:
    """Return a sort key: a path's position in the document, or its mapping's if it is missing."""
    position: list[int] = []
    for step in path:
        if isinstance(data, Mapping) and step in data:
            position.append(list(data).index(step))
            data = data[step]
        elif isinstance(data, list | tuple) and isinstance(step, int) and step < len(data):
            position.append(step)
            data = data[step]
        else:
            break
    return tuple(position)
