"""Tables for people on a terminal: aligned columns, no frame, long last columns wrapped.

Stdlib only.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

_GAP = "  "
_NARROWEST = 24  # columns left for the last one, however narrow the terminal is


def table(rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), width: int = 0) -> str:
    """The rows as aligned text. The last column is wrapped to `width` (the terminal's)."""
    everything = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    if not everything:
        return ""
    columns = max(len(row) for row in everything)
    padded = [row + [""] * (columns - len(row)) for row in everything]
    widths = [max(len(row[i]) for row in padded) for i in range(columns - 1)]
    before = sum(widths) + len(_GAP) * (columns - 1)
    room = max(_NARROWEST, (width or shutil.get_terminal_size((100, 24)).columns) - before)
    return "\n".join(line for row in padded for line in _lines(row, widths, before, room))


def _lines(row: Sequence[str], widths: Sequence[int], before: int, room: int) -> list[str]:
    last = [part for line in row[-1].split("\n") for part in textwrap.wrap(line, room) or [""]]
    start = _GAP.join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)])
    start += _GAP if widths else ""
    return [((start if i == 0 else " " * before) + part).rstrip() for i, part in enumerate(last)]
