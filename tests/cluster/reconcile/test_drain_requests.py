"""How a cordon of ours ends, with the controller's own rights: and where it is nobody's to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.install.manifests import InstallSettings
from cluster.kube.client import Api, connect
from cluster.kube.errors import Conflict
from cluster.model.actions import Uncordon
from cluster.model.names import CONTROLLER, CORDONED, NAMESPACE
from cluster.reconcile import drain_requests
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes

pytestmark = pytest.mark.cluster

NODE = "cordoned-1"
DRAIN = "machineconfiguration.openshift.io/desiredDrain"
ENDS = Uncordon("edu", NODE, {CORDONED: None})


def limit() -> dict[str, float]:
    return {"deadline": 60.0}


@pytest.fixture
def api(control_plane: ControlPlane, installed: InstallSettings) -> Iterator[Api]:
    token = control_plane.pod_token(NAMESPACE, CONTROLLER, None)
    api = connect(control_plane.kubeconfig_of(token))
    yield api
    api.close()


def made(control_plane: ControlPlane, nodes: Nodes, **metadata: dict[str, str]) -> None:
    """A node that we cordoned."""
    nodes.create(NODE, ready=False)
    change = {"metadata": {"labels": {CORDONED: "true"}, **metadata}}
    cordoned = change | {"spec": {"unschedulable": True}}
    control_plane.do("PATCH", f"/api/v1/nodes/{NODE}", cordoned, content_type=MERGE_PATCH)


def end(control_plane: ControlPlane, api: Api, action: Uncordon = ENDS) -> None:
    """As rounds of the controller do: a node that others write meanwhile is looked at again."""

    def done() -> bool:
        try:
            drain_requests.change_cordon(api, action, limit)
        except Conflict:
            return False
        return True

    control_plane.wait_for(done, "the request")


def closed(nodes: Nodes) -> tuple[bool, bool]:
    """Whether the node is cordoned, and whether it says that it is by us."""
    node = nodes.get(NODE)
    cordoned: bool = node["spec"].get("unschedulable", False)
    return cordoned, CORDONED in node["metadata"].get("labels", {})


def test_our_cordon_ends_with_its_label(
    control_plane: ControlPlane, nodes: Nodes, api: Api
) -> None:
    made(control_plane, nodes)

    end(control_plane, api)

    assert closed(nodes) == (False, False)


def test_a_node_that_the_machine_config_operator_drains_stays_cordoned(
    control_plane: ControlPlane, nodes: Nodes, api: Api
) -> None:
    made(control_plane, nodes, annotations={DRAIN: "drain-rendered-worker-1"})

    end(control_plane, api)

    assert closed(nodes) == (True, False)


def test_one_that_it_has_drained_before_is_uncordoned(
    control_plane: ControlPlane, nodes: Nodes, api: Api
) -> None:
    made(control_plane, nodes, annotations={DRAIN: "uncordon-rendered-worker-1"})

    end(control_plane, api)

    assert closed(nodes) == (False, False)


def test_who_takes_our_label_away_keeps_the_cordon(
    control_plane: ControlPlane, nodes: Nodes, api: Api
) -> None:
    made(control_plane, nodes)
    control_plane.kubectl("label", "node", NODE, f"{CORDONED}-")

    end(control_plane, api)

    assert closed(nodes) == (True, False)


def test_a_cordon_that_somebody_made_after_ours_was_ended_stays(
    control_plane: ControlPlane, nodes: Nodes, api: Api
) -> None:
    """We saw the node open, with our label; meanwhile it was cordoned."""
    made(control_plane, nodes)

    end(control_plane, api, Uncordon("edu", NODE, {CORDONED: None}, opens=False))

    assert closed(nodes) == (True, False)


def test_a_change_between_look_and_write_ends_nothing(
    control_plane: ControlPlane, nodes: Nodes, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(control_plane, nodes)
    look = api.get

    def looks_too_early(*asked: Any, **limits: Any) -> dict[str, Any]:
        found = look(*asked, **limits)
        control_plane.kubectl("label", "node", NODE, f"{CORDONED}-")
        return found

    monkeypatch.setattr(api, "get", looks_too_early)

    with pytest.raises(Conflict):
        drain_requests.change_cordon(api, ENDS, limit)

    assert closed(nodes) == (True, False)
