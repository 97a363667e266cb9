"""The page: which goals were reached, then each measurement with its caveats. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """One number that docs/architecture.md promises, and what was measured."""

    what: str
    wanted: str
    measured: str
    reached: bool


@dataclass(frozen=True)
class Section:
    """One measurement. `paragraphs` and `table` are Markdown, in the order they are read."""

    title: str
    before: str
    table: str
    after: str = ""
    goals: tuple[Goal, ...] = ()


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is left-aligned, the others right."""
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(header)}: {row}")
    ruler = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(_cell(c) for c in row)} |" for row in (header, ruler, *rows))


def render(
    command: str, surroundings: Sequence[tuple[str, str]], sections: Sequence[Section]
) -> str:
    """The page of what is measured in one run, without the parts that have runs of their own."""
    about = (
        f"Made by `{command}`; do not edit. All numbers of a table come from the same run on the "
        "same machine. `a (b-c)` is median, minimum and maximum."
    )
    parts = ["# Benchmarks", about, markdown_table(("machine", ""), surroundings), "## Goals"]
    return _joined([*parts, _goals(sections), *_texts(sections)])


def render_part(
    name: str, command: str, surroundings: Sequence[tuple[str, str]], section: Section
) -> str:
    """A part that has a run and a machine of its own, between its marks."""
    about = f"Made by `{command}`, which measures this part alone; do not edit."
    machine = markdown_table(("machine", ""), surroundings)
    body = [section.before, section.table, section.after]
    begin, end = _marks(name)
    return _joined([begin, f"## {section.title}", about, machine, _goals([section]), *body, end])


def with_part(page: str, name: str, part: str) -> str:
    """The page with this part in the place of its old one, or at its end."""
    begin, end = _marks(name)
    head, found, rest = page.partition(begin)
    tail = rest.partition(end)[2] if found else ""
    return _joined([head, part, tail])


def with_machine(page: str, text: str) -> str:
    """The page with this text in the place of everything but such parts."""
    return _joined([text, *(found[0] for found in _PART.finditer(page))])


_PART = re.compile(r"<!-- (\w+) -->.*?<!-- /\1 -->", re.DOTALL)


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def _goals(sections: Sequence[Section]) -> str:
    goals = [goal for section in sections for goal in section.goals]
    words = {True: "reached", False: "**missed**"}
    rows = [(goal.what, goal.wanted, goal.measured, words[goal.reached]) for goal in goals]
    return markdown_table(("what", "goal", "measured", ""), rows)


def _texts(sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        yield from (f"## {section.title}", section.before, section.table, section.after)


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
