"""The bench at its smallest size, as a process, and the tables that it shows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from nodeside.system import process
from tests import TOP
from tests.patience import patience

_HANG = patience(3600.0)  # seconds

Rows = Mapping[str, tuple[str, ...]]  # the other cells, by the first one


def measure(*parts: str, page: Path) -> Mapping[str, Rows]:
    """Measures some parts. Returns the rows of all tables of a section, by its title."""
    only = [word for name in parts for word in ("--only", name)]
    argv = [sys.executable, "-m", "bench", "--smallest", *only, "--to", str(page)]
    done = process.run(argv, timeout=_HANG, cwd=TOP, check=False)
    assert done.exit_code == 0, f"{done.output}\n{done.errors}"
    assert not page.exists(), "such numbers are not for the page"
    return tables(done.output)


def tables(text: str) -> Mapping[str, Rows]:
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
        elif line.startswith("| ") and "---" not in line:
            first, *others = (cell.strip() for cell in line.strip("| ").split(" | "))
            found.setdefault(title, {})[first] = tuple(others)
    return found


def measured(rows: Rows, *names: str) -> None:
    """Asserts that these rows are there, and that a number stands in every cell of them."""
    for name in names:
        assert name in rows, f"{name!r} is not in {list(rows)}"
        cells = rows[name]
        assert cells, f"{name}: no cells"
        assert all(any(letter.isdigit() for letter in cell) for cell in cells), (name, cells)
