"""Compare the costs of two runs of the tests: python -m tests.costs OLD.json NEW.json."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.costs.record import Costs, difference, read


def main(words: list[str]) -> None:
    if len(words) != 2:
        raise SystemExit(f"{__doc__}")
    sys.stdout.write(difference(*(_read(Path(word)) for word in words)) + "\n")


def _read(path: Path) -> Costs:
    costs = read(path)
    if costs is None:
        raise SystemExit(f"error: {path}: no costs of a run; `make test` writes them")
    return costs


if __name__ == "__main__":
    main(sys.argv[1:])
