"""Reads the lines of a Containerfile that tests compare with the tree."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any


def instructions(path: Path) -> list[str]:
    """Each instruction as one line, comments gone."""
    rows = [row for row in path.read_text().splitlines() if not row.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(rows))
    return [row for row in joined.splitlines() if row.strip()]


def settings(path: Path) -> dict[str, Any]:
    """What a container of the image starts with, as the image's configuration has it."""
    found: dict[str, Any] = {"Env": []}
    for row in instructions(path):
        word, _, rest = row.partition(" ")
        match word:
            case "ENV":
                found["Env"] += shlex.split(rest)
            case "WORKDIR":
                found["WorkingDir"] = rest.strip()
            case "USER":
                found["User"] = rest.strip()
            case "ENTRYPOINT" | "CMD":
                found[word.capitalize()] = json.loads(rest)
    return found


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
