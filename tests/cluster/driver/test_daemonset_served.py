"""The golden DaemonSets on a real API server: every field is known there, and kept as it is.

A field that the API server drops or writes otherwise would look edited by hand, and be applied
again in every round.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.driver.daemonset import daemonset_document, object_to_overwrite
from cluster.kube.resources import DAEMON_SETS
from cluster.model.parse import daemonset_from
from tests.cluster.fakes.daemonsets import CASES
from tests.controlplane.api_server import APPLY_PATCH
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster


def applied(control_plane: ControlPlane, document: dict[str, Any]) -> dict[str, Any]:
    path = DAEMON_SETS.path(document["metadata"]["name"], namespace="default")
    path += "?fieldManager=nodeside-cluster&force=true&fieldValidation=Strict"
    return dict(control_plane.do("PATCH", path, document, content_type=APPLY_PATCH))


@pytest.mark.parametrize("case", CASES)
def test_what_the_api_server_gives_back_does_not_differ(
    control_plane: ControlPlane, case: str
) -> None:
    document = daemonset_document(CASES[case])
    document["metadata"]["namespace"] = "default"
    del document["metadata"]["ownerReferences"]  # there is no such Driver to own it

    first = applied(control_plane, document)
    again = applied(control_plane, document)
    path = DAEMON_SETS.path(document["metadata"]["name"], namespace="default")
    control_plane.do("DELETE", path)

    assert not object_to_overwrite(document, daemonset_from(first))
    assert again["metadata"]["generation"] == 1
