"""What the page of a fleet is made of."""

from __future__ import annotations

from typing import Any

from cluster.cli.fleet_report import NodeRow
from cluster.cli.leader_status import LeaderStatus
from cluster.cli.status import Overview, overview
from cluster.model.snapshot import NodeReport
from tests.cluster.fakes.model import Model


def row(node: str, state: str = "ready", **fields: Any) -> NodeRow:
    usual = {"version": "1.0.0", "kernel": "6.1.0-50-amd64", "source": "built"}
    told = NodeReport(f"edu.{node}", "edu", node, state, **(usual | fields))
    return NodeRow(told, {"build": 1.5, "load": 0.25})


def seen(model: Model, words: str = "") -> Overview:
    return overview(model.snapshot.drivers, LeaderStatus(not words, words))


def fleet(count: int = 3) -> Model:
    model = Model()
    model.add([f"n{number}" for number in range(count)])
    model.apply_driver()
    model.settle_ready()
    return model
