"""The page about a fleet: what is on it, and that no word of a node becomes more than text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from cluster.cli.fleet_report import NodeRow, _node_row, make_page, make_report
from cluster.install.manifests import InstallSettings
from cluster.kube.client import Api
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.reported import fleet, row, seen
from tests.cluster.fakes.stagedriver import up, with_stages
from tests.controlplane.controlplane import ControlPlane

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
URL = "https://api.example.com:6443"
HOSTILE = "</td><script>alert(1)</script>\x1b[2J"


class Text(HTMLParser):
    """The tags and the cells of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name in ("src", "href", "onclick")]

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def test_the_page_has_drivers_kernels_and_nodes() -> None:
    page = make_page(seen(fleet()), [row("n0"), row("n1"), row("n2")], URL, NOW)

    cells = Text(page).cells
    for words in ("edu", "Ready", "6.1.0-50-amd64", "n0", "built", "1.5", "build, s", URL):
        assert any(words in cell for cell in cells), words
    assert "edu: 3 ready" in page
    assert "2026-11-26 12:00:00 UTC" in page


def test_what_is_wrong_comes_first_with_its_reason() -> None:
    failed = row("n9", "failed", reason="Compile", message="edu.c:1: error: no")

    page = make_page(seen(fleet()), [row("n0"), failed], URL, NOW)

    assert page.index(">n9<") < page.index(">n0<")
    assert "Compile; edu.c:1: error: no" in page
    assert "edu: 1 ready, 1 failed, 1 silent" in page


def test_a_cluster_without_drivers_or_without_a_leader_says_so() -> None:
    assert "There is no Driver" in make_page(seen(Model()), [], URL, NOW)
    assert "no controller leads" in make_page(seen(fleet(), "no controller leads"), [], URL, NOW)


def test_stages_have_a_table_too() -> None:
    assert "<h2>Stages</h2>" in make_page(seen(up(with_stages(2))), [], URL, NOW)


def test_a_word_of_a_node_is_text() -> None:
    hostile = row(HOSTILE, HOSTILE, version=HOSTILE, message=HOSTILE)
    hostile = NodeRow(hostile.report, {HOSTILE: 1.0})

    page = make_page(seen(fleet()), [hostile], URL, NOW)

    assert "script" not in Text(page).tags
    assert "\x1b" not in page
    assert "edu: 1 waiting" in page, "a state that there is not is none"


def test_a_large_fleet_has_its_worst_nodes_on_the_page() -> None:
    rows = [row(f"n{number}") for number in range(3000)]
    rows.append(row("bad", "failed"))

    page = make_page(seen(fleet()), rows, URL, NOW)

    assert "2000 of 3001 nodes" in page
    assert ">bad<" in page
    assert len(page) < 2_000_000


@pytest.mark.parametrize(
    "stages", [None, [], "x", {"load": "x"}, {"a" * 999: 1}, {str(n): n for n in range(999)}]
)
def test_stages_that_no_node_of_ours_writes_do_not_matter(stages: Any) -> None:
    found = _node_row({"metadata": {"name": "edu.n1"}, "status": {"stages": stages}})

    assert found is not None
    assert len(found.seconds) <= 20
    assert all(len(name) <= 40 for name in found.seconds)


@pytest.mark.cluster
def test_a_real_cluster_has_its_page(
    api: Api, installed: InstallSettings, control_plane: ControlPlane
) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "nodeside-controller", "namespace": "nodeside"},
        "spec": {},
    }
    path = "/apis/coordination.k8s.io/v1/namespaces/nodeside/leases"
    control_plane.do("POST", path, lease)
    try:
        page = make_report(api, "nodeside")
    finally:
        control_plane.do("DELETE", f"{path}/nodeside-controller")

    assert re.search(r"There is no Driver|<h2>Nodes by state</h2>", page)
    assert "no controller leads" in page
