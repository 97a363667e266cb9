"""The objects of the device agent on a real API server: known there, and kept as they are.

A field that the API server drops or writes otherwise would be applied again in every round.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.kube.comparison import has_drifted
from cluster.kube.resources import resource_of
from cluster.model.parse import driver_from
from cluster.model.snapshot import Settings
from cluster.options.devices.agent_manifests import device_agent
from cluster.options.stages.manifests import Frame, frame_built_in
from tests.cluster.fakes.model import document
from tests.controlplane.api_server import APPLY_PATCH
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

SETTINGS = Settings(
    namespace="default",
    agent_image="registry.example.com/nodeside-agent:1.0",
    scc="nodeside-driver",
    pull_secrets=("pull",),
)
DEVICES = [
    {
        "resource": "example.com/edu",
        "discover": {"pci": [{"vendor": "1234"}]},
        "attributes": [{"name": "revision", "path": "revision", "label": True}],
        "expose": "dra",
    }
]


def made() -> list[dict[str, Any]]:
    found = driver_from(document(devices=DEVICES))
    assert found.driver is not None
    frame = Frame(found, found.driver, "devices", "", SETTINGS)
    absent = frozenset(["PodMonitor"])  # as in a cluster without the Prometheus operator
    objects, _ = frame_built_in(frame, device_agent(found.driver, SETTINGS), absent)
    return [dict(each) for each in objects]


@pytest.mark.parametrize("wanted", made(), ids=lambda each: each["kind"])
def test_what_the_api_server_gives_back_does_not_differ(
    control_plane: ControlPlane, wanted: dict[str, Any]
) -> None:
    del wanted["metadata"]["ownerReferences"]  # there is no such Driver to own it
    path = resource_of(wanted).path(wanted["metadata"]["name"], namespace="default")

    applied = control_plane.do(
        "PATCH",
        f"{path}?fieldManager=nodeside-cluster&force=true&fieldValidation=Strict",
        wanted,
        content_type=APPLY_PATCH,
    )
    control_plane.do("DELETE", path)

    assert not has_drifted(wanted, applied)
