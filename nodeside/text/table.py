"""Tables for a terminal: aligned columns, no frame, a long last column is wrapped.

If the columns do not fit the terminal, each row continues on further lines. Words are never broken,
so that a kernel release or a pull spec can be copied. Control characters in cells are escaped.

On a terminal, unless NO_COLOR is set, a `Colored` cell has its color. In a row without one, a cell
that is one of a few words has a color. So has a count below FAILED that is not 0. The header has
none.

Stdlib only.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from nodeside.log import escape_controls

_GAP = "  "
_WIDEST = 200  # characters of a column; a longer cell is shown whole, and pads no other row
_NARROWEST = 24  # characters that the last column needs; otherwise it gets its own lines
_INDENT = "    "  # of the continuation lines of a row
_UNKNOWN = 100  # width without a terminal; a row then stays on one line, for `grep`

_GOOD, _BUSY, _BAD, _PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_COLORS = {
    **dict.fromkeys(("ok", "ready", "Ready", "served"), _GOOD),
    **dict.fromkeys(("waiting", "building", "loading", "unloading", "unknown", "NodesBusy"), _BUSY),
    **dict.fromkeys(("FAILED", "MISSING", "failed", "not ready", "reboot-required"), _BAD),
}
_SHOULD_BE_0 = "FAILED"  # the title of a column of counts


class Colored(str):
    """A cell with a color that its writer chose, by more than the word in it."""

    color: str

    def __new__(cls, text: str, color: str) -> Colored:
        made = super().__new__(cls, text)
        made.color = color
        return made

    def painted(self) -> str:
        """Return the text for a line outside of a table."""
        return f"{self.color}{self}{_PLAIN}" if on_terminal() else str(self)


def good(text: str) -> Colored:
    return Colored(text, _GOOD)


def busy(text: str) -> Colored:
    return Colored(text, _BUSY)


def bad(text: str) -> Colored:
    return Colored(text, _BAD)


def on_terminal() -> bool:
    """Return whether stdout is a terminal whose user has nothing against colors."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def table(
    rows: Sequence[Sequence[str]],
    *,
    header: Sequence[str] = (),
    width: int = 0,
    below: bool = False,
) -> str:
    """Return the rows as aligned text; wraps the last column to `width` (default: the terminal).

    With `below`, the last column is sentences: if not all of them fit beside their rows, each is
    below its row. Without a terminal, they are beside it on the same line.
    """
    lines = [header, *rows] if header else rows
    everything = [[escape_controls(str(cell), keep="\t\n") for cell in line] for line in lines]
    if not everything:
        return ""
    columns = max(len(row) for row in everything)
    padded = [row + [""] * (columns - len(row)) for row in everything]
    widths = [min(_WIDEST, max(len(row[i]) for row in padded)) for i in range(columns - 1)]
    terminal = width or shutil.get_terminal_size((0, 0)).columns
    room = max(len(row[-1]) for row in padded) if below else _NARROWEST
    groups = _group_columns(widths, terminal, room) if terminal else [range(columns - 1)]
    if below and header and not groups[-1]:
        padded[0][-1] = ""  # a line of its own for a title says nothing
    plain = [""] * columns
    titles, colors = (padded[0], [plain]) if header else (plain, [])
    rest = slice(len(colors), None)
    pairs = zip(lines[rest], padded[rest], strict=True)
    colors += [_cell_colors(row, shown, titles) for row, shown in pairs]
    wrapped = terminal or (sys.maxsize if below else _UNKNOWN)
    return "\n".join(
        line
        for row, paint in zip(padded, colors, strict=True)
        for line in _row_lines(row, paint, widths, groups, wrapped)
    )


def _cell_colors(row: Sequence[str], shown: Sequence[str], titles: Sequence[str]) -> list[str]:
    """Return the color of each cell, "" for none. `shown` is the row as it is printed."""
    if not on_terminal():
        return [""] * len(shown)
    chosen = {i: cell.color for i, cell in enumerate(row) if isinstance(cell, Colored)}
    words = {} if chosen else _COLORS
    return [
        _BAD
        if title == _SHOULD_BE_0 and cell.strip("0").isdecimal()
        else chosen.get(i) or words.get(cell, "")
        for i, (cell, title) in enumerate(zip(shown, titles, strict=True))
    ]


def _group_columns(widths: Sequence[int], terminal: int, room: int) -> list[range]:
    """Group all columns but the last into lines, leaving this room for the last column."""
    groups, start, used = [], 0, 0
    for column, width in enumerate(widths):
        if column > start and used + width > terminal:
            groups.append(range(start, column))
            start, used = column, len(_INDENT)
        used += width + len(_GAP)
    groups.append(range(start, len(widths)))
    if used + room > terminal and widths:
        groups.append(range(len(widths), len(widths)))
    return groups


def _row_lines(
    row: Sequence[str],
    colors: Sequence[str],
    widths: Sequence[int],
    groups: Sequence[range],
    width: int,
) -> list[str]:
    lines: list[str] = []
    below = ""  # what further lines of the last column begin with
    for number, group in enumerate(groups):
        start = _INDENT if number else ""
        lines.append(
            start + "".join(_color_cell(row[i], colors[i], widths[i]) + _GAP for i in group)
        )
        below = " " * (len(start) + sum(widths[i] + len(_GAP) for i in group))
    start = lines.pop()
    room = max(_NARROWEST, width - len(below))
    parts = [part for line in row[-1].split("\n") for part in _wrap_cell(line, room)]
    if len(parts) == 1:
        parts = [_color_cell(parts[0], colors[-1], 0)]
    lines += [(start if i == 0 else below) + part for i, part in enumerate(parts)]
    stripped = [line.rstrip() for line in lines]
    return stripped if len(groups) == 1 else [stripped[0], *filter(None, stripped[1:])]


def _color_cell(cell: str, color: str, width: int) -> str:
    padded = cell.ljust(width)
    return f"{color}{cell}{_PLAIN}{padded[len(cell) :]}" if color else padded


def _wrap_cell(line: str, room: int) -> list[str]:
    return textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False) or [""]
