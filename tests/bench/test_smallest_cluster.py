"""The bench of the cluster side works: at its smallest size, once, on a control plane of its own.

What was measured is not judged: only that it was.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cluster.stage import POOLS
from tests.bench.smallest import measure, measured

pytestmark = pytest.mark.cluster

NODES = 25


def test_a_controller_and_its_nodes_are_measured(tmp_path: Path) -> None:
    found = measure("cluster", page=tmp_path / "page.md")["The controller at scale"]

    assert found["nodes"] == (str(NODES),)
    measured(
        found,
        "**idle**, heartbeats only: minutes",
        "**a node changes its kernel** → pod bound, median",
        "**new version to all nodes**, 10 % at a time",
        "nodes: calls a node",
        f"**start**, {POOLS} DaemonSets of a second Driver to make: start → applied",
        "a node is down, which concerns all Drivers",
    )
    spoke = found["patch nodedrivers"]
    assert int(spoke[1]) >= NODES, "every node said what it has, and was counted"
