"""Tests. `TOP` is the repository, `CORPUS` what was collected elsewhere."""

from pathlib import Path

TOP = Path(__file__).parents[1]
CORPUS = TOP / "tests" / "corpus"
