"""Reads the lines of a Containerfile that tests compare with the tree."""

from __future__ import annotations

import re
from pathlib import Path


def instructions(path: Path) -> list[str]:
    """Each instruction as one line, comments gone."""
    rows = [row for row in path.read_text().splitlines() if not row.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(rows))
    return [row for row in joined.splitlines() if row.strip()]


def copies(path: Path) -> list[tuple[str, str]]:
    """Source and target of what is copied from the context."""
    found: list[tuple[str, str]] = []
    for row in instructions(path):
        match row.split():
            case ["COPY", first, *_] if first.startswith("--from="):
                continue
            case ["COPY", *sources, target]:
                found += [(source, target) for source in sources]
    return found
