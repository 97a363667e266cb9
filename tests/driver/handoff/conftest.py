"""What holds for the tests of what the driver hands over."""

from __future__ import annotations

from functools import cache

import pytest

from nodeside.driver.handoff import zipapp

_compiled = cache(zipapp.compile_pyc)


@pytest.fixture
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To compile the program takes a tenth of a second: each source is compiled for all tests."""
    monkeypatch.setattr(zipapp, "compile_pyc", _compiled)
