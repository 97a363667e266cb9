"""What `make TARGET` does, line by line, as the Makefile has it; each line can be run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from nodeside.system import process
from nodeside.system.process import Completed
from tests import TOP
from tests.console import LONG

_TEXT = (TOP / "Makefile").read_text()
TARGETS = tuple(re.findall(r"^([a-z-]+):", _TEXT, re.MULTILINE))


def recipe(target: str, *words: str, env: Mapping[str, str] | None = None) -> list[str]:
    """The commands of a target, given more words such as ARGS=--help.

    Without setup, which would change this machine; and without sudo, which a test may not ask for.
    """
    argv = ["make", "--dry-run", "--no-print-directory", "AS_ROOT=", target, *words]
    lines = process.run(argv, timeout=LONG, cwd=TOP, env=env).output.splitlines()
    return [line.strip() for line in lines if line.strip() and "scripts/setup" not in line]


def follow(line: str, *, env: Mapping[str, str] | None = None, cwd: Path = TOP) -> Completed:
    """Run one command of a recipe to its end, whatever comes of it."""
    return process.run(["sh", "-c", line], timeout=LONG, cwd=cwd, env=env, check=False)
