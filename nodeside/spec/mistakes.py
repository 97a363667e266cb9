"""What is wrong with a document, in words, in the order of the document.

The reader collects every mistake before anybody hears of the first: a person corrects a file once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodeside.errors import SpecError

Path = tuple[str | int, ...]

_USER = re.compile(r"//[^/?#]*@")  # of a URL, with the password
_SHOWN = 50  # mistakes; more are counted
_SHOWN_TEXT = 80  # characters of a wrong value
_PLAIN_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$")


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong, at a path of the document."""

    path: Path
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{in_words(self.path)}: {self.message}" + (f"; {self.hint}" if self.hint else "")


@dataclass(frozen=True)
class Document:
    """A document as plain values, and what is known about where they stood.

    `lines` has the line of a path; `written` a scalar as it was written, where that is not what its
    value prints as (`0x10`, `1.10`, `on`). `mistakes` are those that reading it found already.
    """

    where: str
    data: object
    lines: Mapping[Path, int] = field(default_factory=dict)
    written: Mapping[Path, str] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()

    def shown(self, path: Path, value: object) -> str:
        """A wrong value as a person would point at it."""
        written = self.written.get(path)
        return _without_password(written) if written else in_brief(value)

    def line(self, path: Path) -> int:
        """The line of a path, or of the nearest mapping around it; 0 if no line is known."""
        nearest = (path[:length] for length in range(len(path), -1, -1))
        return next((self.lines[start] for start in nearest if start in self.lines), 0)


def refuse(document: Document, mistakes: Sequence[Mistake]) -> SpecError:
    """The error that lists every mistake, one per line, in document order."""
    rows = sorted(mistakes, key=lambda mistake: _position(document.data, mistake.path))
    lines = [f"{_place(document, mistake.path)}: {mistake}" for mistake in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        lines.append(f"{document.where}: and {len(rows) - _SHOWN} mistakes more")
    return SpecError("\n".join(lines), hint="every field is explained in docs/driver-yaml.md")


def in_words(path: Path) -> str:
    """`$.spec.modules[0].name`; a key that is not a plain word stands in brackets and quotes."""
    return "$" + "".join(_step(step) for step in path)


def in_brief(value: object) -> str:
    """A value in a few words: scalars as JSON, cut if long; containers by their kind."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool | float | str):
        return _cut(_without_password(json.dumps(value, ensure_ascii=not _encodable(value))))
    try:
        return _cut(str(value))
    except ValueError:  # an int of more digits than Python prints
        return "a very large number"


def _without_password(text: str) -> str:
    """A mistake goes into the log and the status of a Driver, which more people read than it."""
    return _USER.sub("//…@", text)


def _encodable(value: object) -> bool:
    """Whether a terminal can show it: text from YAML or JSON may hold half a surrogate pair."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return str(value).isprintable()


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}..."


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN_KEY.match(step) else f"[{in_brief(step)}]"


def _place(document: Document, path: Path) -> str:
    line = document.line(path)
    return f"{document.where}:{line}" if line else document.where


def _position(data: object, path: Path) -> tuple[int, ...]:
    """Where a path stands in a document, to sort by; of a missing field, its mapping's place."""
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
