"""The page: which goals were reached, then each measurement with its caveats. Pure."""

from __future__ import annotations

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
    """The page of what is measured on one machine, without the cluster's part."""
    about = (
        f"Made by `{command}`; do not edit. All numbers of a table come from the same run on the "
        "same machine. `a (b-c)` is median, minimum and maximum."
    )
    parts = ["# Benchmarks", about, markdown_table(("machine", ""), surroundings), "## Goals"]
    return _joined([*parts, _goals(sections), *_texts(sections)])


def render_cluster(command: str, surroundings: Sequence[tuple[str, str]], section: Section) -> str:
    """The cluster's part, which has a run and a machine of its own."""
    about = f"Made by `{command}`, which measures this part alone; do not edit."
    machine = markdown_table(("machine", ""), surroundings)
    body = [section.before, section.table, section.after]
    return _joined([_BEGIN, f"## {section.title}", about, machine, _goals([section]), *body, _END])


def with_cluster(page: str, part: str) -> str:
    """The page with this part in the place of its old one, or at its end."""
    head, begin, rest = page.partition(_BEGIN)
    tail = rest.partition(_END)[2] if begin else ""
    return _joined([head, part, tail])


def with_machine(page: str, text: str) -> str:
    """The page with this text in the place of everything but the cluster's part."""
    _, begin, rest = page.partition(_BEGIN)
    part, end, _ = rest.partition(_END)
    return _joined([text, f"{begin}{part}{end}"])


_BEGIN, _END = "<!-- cluster -->", "<!-- /cluster -->"


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
