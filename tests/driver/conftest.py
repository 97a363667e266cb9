"""What holds for all tests of the driver side."""

from __future__ import annotations

import os

import pytest

from nodeside.driver.module import modulefile
from nodeside.driver.services import processes
from tests.no_fork import run_here


@pytest.fixture(autouse=True)
def own_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services are known on the whole machine, where the tests may run twice at a time."""
    monkeypatch.setattr(processes, "VARIABLE", f"NODESIDE_SERVICE_{os.getpid()}")


@pytest.fixture(autouse=True)
def module_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Module files are read in this process; the tests of `module` have the real reader."""
    monkeypatch.setattr(modulefile, "run_in_child", run_here)
