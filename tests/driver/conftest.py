"""What holds for all tests of the driver side."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from nodeside.driver.module import modulefile
from nodeside.driver.services import processes
from nodeside.errors import NodesideError
from nodeside.system.child import ChildRaised


@pytest.fixture(autouse=True)
def own_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services are known on the whole machine, where the tests may run twice at a time."""
    monkeypatch.setattr(processes, "VARIABLE", f"NODESIDE_SERVICE_{os.getpid()}")


@pytest.fixture(autouse=True)
def module_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Module files are read in this process: a fork of it for each costs more than most tests.

    The tests of `module` have the real reader, with its limits.
    """

    def run_here(call: Callable[[], bytes], *_: object, **__: object) -> bytes:
        try:
            return call()
        except (NodesideError, OSError):
            raise
        except Exception as exc:
            raise ChildRaised(type(exc).__name__, str(exc)) from exc

    monkeypatch.setattr(modulefile, "run_in_child", run_here)
