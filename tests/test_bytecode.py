"""Where a run of the tests keeps what Python compiles, if Python is told to keep none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nodeside.system import process
from tests import TOP
from tests.console import LONG


@pytest.mark.slow
def test_a_run_that_keeps_none_in_the_checkout_keeps_it_in_the_cache(tmp_path: Path) -> None:
    words = ["-B", "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", __file__]

    process.run(
        [sys.executable, *words], timeout=LONG, cwd=TOP, env={"XDG_CACHE_HOME": str(tmp_path)}
    )

    kept = tmp_path / "nodeside" / "tests" / "bytecode" / TOP.relative_to("/")
    name = Path(__file__).stem
    assert list(kept.glob(f"tests/{name}.*.pyc"))
