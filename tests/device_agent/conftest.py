"""The processes that play the kubelet: one for all tests here, and another kubelet for each.

They end with the last test here, which is charged for them: not with the last one of the run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodeside.system import sysfs
from tests.device_agent.dra.played_kubelet import DraKubelet, dra_kubelet_process
from tests.device_agent.played_kubelet import PlayedKubelet, kubelet_process
from tests.no_fork import run_here


@pytest.fixture(scope="package")
def kubelets() -> Iterator[PlayedKubelet]:
    """One that a test `move`s, and does not kill."""
    with kubelet_process("tests.device_agent.played_kubelet", PlayedKubelet) as process:
        yield process


@pytest.fixture(scope="package")
def dra_kubelets() -> Iterator[DraKubelet]:
    """One that a test `move`s, and does not kill."""
    with dra_kubelet_process() as process:
        yield process


@pytest.fixture(autouse=True)
def attribute_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes are read in this process, at each look. tests/devices has the real reader."""
    monkeypatch.setattr(sysfs, "run_in_child", run_here)


@pytest.fixture
def not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is not to begin cannot: it would not end in the thread of a test."""
    monkeypatch.setattr("nodeside.device_agent.agent.run_agent", None)
