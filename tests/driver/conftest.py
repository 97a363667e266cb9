"""What holds for all tests of the driver side."""

from __future__ import annotations

import os

import pytest

from nodeside.driver.services import processes


@pytest.fixture(autouse=True)
def own_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services are known on the whole machine, where the tests may run twice at a time."""
    monkeypatch.setattr(processes, "VARIABLE", f"NODESIDE_SERVICE_{os.getpid()}")
