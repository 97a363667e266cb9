"""The world as reflectors and one look at the API server make it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.cache.cache import read_once, select_kinds
from cluster.model import parse
from cluster.model.snapshot import Settings
from tests.cluster.fakes.model import document
from tests.cluster.fakes.scripted import Said, ScriptedServer


def listed(*items: dict[str, Any]) -> Said:
    return Said(body=json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}))


@pytest.mark.slow
def test_one_look_reads_each_kind_once_and_knows_when_there_are_no_image_streams(
    tmp_path: Path,
) -> None:
    node = {"metadata": {"name": "n1", "labels": {}}, "status": {"nodeInfo": {}}}
    nothing = listed()
    script = [listed(node), listed(document()), *[nothing] * 6, Said(404)]
    with ScriptedServer(*script) as server:
        found = read_once(server.api(tmp_path), Settings(namespace="mine"))

    assert found.nodes.keys() == {"n1"}
    assert found.drivers["edu"].driver is not None
    assert found.image_streams is None
    assert len(server.asked) == 9
    ours = "labelSelector=app.kubernetes.io%2Fmanaged-by%3Dnodeside"
    assert server.asked[2].path.startswith(f"/apis/apps/v1/namespaces/mine/daemonsets?{ours}")


def test_the_reports_that_one_node_writes_are_counted_together() -> None:
    selection = select_kinds("mine")["node_drivers"]
    reports = [parse.node_driver_from({"metadata": {"name": name}}) for name in ("a.n0", "b.n0")]

    assert selection.crowd is not None
    assert [selection.crowd(report) for report in reports] == ["n0", "n0"]
