"""Labels of a node change if they are as they were seen: with a real API server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cluster.kube.client import Api
from cluster.kube.credentials import Access
from cluster.kube.errors import ApiError, Conflict, NotFound
from cluster.kube.transport import ApiTransport
from cluster.model.actions import LabelNode
from cluster.reconcile.node_labels import patch_labels
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes

pytestmark = pytest.mark.cluster

NODE = "labels.example.com"
ASSIGNED, STATE = "nodeside.io/edu.assigned", "nodeside.io/edu.state"
SEEN = {ASSIGNED: "first", STATE: "ready"}


@pytest.fixture
def nodes(control_plane: ControlPlane) -> Iterator[Nodes]:
    nodes = Nodes(control_plane)
    nodes.create(NODE, labels=SEEN)
    yield nodes
    nodes.clear()


@pytest.fixture
def api(control_plane: ControlPlane) -> Api:
    return Api(ApiTransport(Access(Path(control_plane.kubeconfig))))


def ours(nodes: Nodes) -> Mapping[str, str]:
    labels = nodes.get(NODE)["metadata"]["labels"]
    return {key: value for key, value in labels.items() if key.startswith("nodeside.io/")}


def changed(api: Api, seen: Mapping[str, str] = SEEN, **labels: str | None) -> None:
    keys = {f"nodeside.io/edu.{word}": value for word, value in labels.items()}
    patch_labels(api, LabelNode("edu", NODE, keys), seen, lambda: {"deadline": 10.0})


def test_labels_are_set_and_taken_away_and_others_stay(api: Api, nodes: Nodes) -> None:
    changed(api, assigned="second", before="first", state=None, gone=None)

    assert ours(nodes) == {ASSIGNED: "second", "nodeside.io/edu.before": "first"}


@pytest.mark.parametrize("seen", [{}, {**SEEN, ASSIGNED: "of before"}])
def test_what_somebody_else_changed_since_stays(
    api: Api, nodes: Nodes, seen: Mapping[str, str]
) -> None:
    with pytest.raises(Conflict, match=f"labels of node {NODE} are not what they were"):
        changed(api, seen, assigned="second")
    with pytest.raises(Conflict):
        changed(api, seen, assigned=None, before="first")

    assert ours(nodes) == SEEN


def test_a_label_that_is_gone_since_does_not_come_back(api: Api, nodes: Nodes) -> None:
    nodes.label(NODE, {ASSIGNED: None})

    with pytest.raises(Conflict):
        changed(api, assigned="second")


def test_a_request_that_is_repeated_finds_its_work_done(api: Api, nodes: Nodes) -> None:
    for _ in range(2):
        changed(api, assigned="second", state=None)

    assert ours(nodes) == {ASSIGNED: "second"}


def test_other_changes_of_the_node_are_in_nobodys_way(api: Api, nodes: Nodes) -> None:
    nodes.label(NODE, {STATE: "failed", "team": "storage"})

    changed(api, assigned="second")

    assert ours(nodes) == {ASSIGNED: "second", STATE: "failed"}


def test_a_value_that_cannot_be_is_refused_in_the_servers_words(api: Api, nodes: Nodes) -> None:
    with pytest.raises(ApiError, match="a valid label must be"):
        changed(api, assigned="no label!")
    with pytest.raises(NotFound):
        patch_labels(
            api, LabelNode("edu", "nowhere", {ASSIGNED: "a"}), {}, lambda: {"deadline": 10.0}
        )
