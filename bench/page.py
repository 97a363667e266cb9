"""The page: which goals were reached, then each measurement with its caveats. Pure."""

from __future__ import annotations

from collections.abc import Sequence
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
    """The whole page."""
    goals = [goal for section in sections for goal in section.goals]
    about = (
        f"Made by `{command}`; do not edit. All numbers of a table come from the same run on the "
        "same machine. `a (b-c)` is median, minimum and maximum."
    )
    parts = [
        "# Benchmarks",
        about,
        markdown_table(("machine", ""), surroundings),
        "## Goals",
        markdown_table(
            ("what", "goal", "measured", ""),
            [
                (g.what, g.wanted, g.measured, "reached" if g.reached else "**missed**")
                for g in goals
            ],
        ),
    ]
    for section in sections:
        parts += [f"## {section.title}", section.before, section.table, section.after]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
