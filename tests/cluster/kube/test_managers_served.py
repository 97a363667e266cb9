"""What a real API server remembers of who labelled a node, once many others have changed it."""

from __future__ import annotations

import pytest

from cluster.kube.managed_fields import FIELD_MANAGER
from cluster.kube.resources import NODES
from cluster.model.parse import node_from
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes

pytestmark = pytest.mark.cluster


def test_when_we_labelled_a_node_is_known_though_twenty_have_updated_it_since(
    control_plane: ControlPlane, nodes: Nodes
) -> None:
    nodes.create("n0", ready=False)
    path = NODES.path("n0")
    for manager in (FIELD_MANAGER, *(f"other-{number}" for number in range(20))):
        body = {"metadata": {"labels": {f"example.com/{manager}": "yes"}}}
        asked = f"{path}?fieldManager={manager}"
        control_plane.do("PATCH", asked, body, content_type=MERGE_PATCH)

    found = control_plane.do("GET", path)

    managers = {entry["manager"] for entry in found["metadata"]["managedFields"]}
    assert FIELD_MANAGER not in managers, "there are not enough others"
    assert node_from(found).labelled > 0
