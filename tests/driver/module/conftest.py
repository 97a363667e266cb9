"""What holds for the tests of module files."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def module_reader() -> None:
    """The real one: a child process with limits."""
