"""The answers of the API servers that tests play are those of a real one: asked for the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.install.manifests import InstallSettings
from cluster.kube.resources import CONFIG_MAPS, DRIVERS, NODES
from cluster.model.names import NAMESPACE
from nodeside.protocol.labels import API_VERSION
from tests.cluster.fakes import scripted
from tests.cluster.fakes.scripted import Asked
from tests.cluster.fakes.stored import StoredObjects
from tests.controlplane.api_server import APPLY_PATCH, MERGE_PATCH
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.device_agent.dra.played_api import DraApiServer
from tests.driver.fakes.apiserver import TOKEN, Seen, make_certificates

pytestmark = pytest.mark.cluster

NODE = "answers.example.com"
NODE_DRIVER = f"edu.{NODE}"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
EVENT: dict[str, Any] = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "answers", "namespace": "default"},
    "eventTime": "2026-01-02T03:04:05.000000Z",
    "reportingController": "nodeside.io/answers",
    "reportingInstance": "answers",
    "action": "Load",
    "reason": "DriverReady",
    "regarding": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    "type": "Normal",
}
SLICE: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "answers"},
    "spec": {
        "driver": "answers.example.com",
        "nodeName": NODE,
        "pool": {"name": "answers", "generation": 1, "resourceSliceCount": 1},
        "devices": [],
    },
}


@pytest.mark.parametrize(
    "path",
    [
        CONFIG_MAPS.path("none", namespace=NAMESPACE),
        DRIVERS.path("none"),
        NODES.path("none.example.com"),
        "/apis/absent.example.com/v1/things",
        "/apis/absent.example.com/v1/things/one",
    ],
)
def test_what_is_not_there_is_told_in_the_same_words(
    control_plane: ControlPlane, installed: InstallSettings, path: str
) -> None:
    real = control_plane.request("GET", path)
    played = StoredObjects([], absent=["absent.example.com"]).answer(Asked("GET", path, {}, ""))

    text = played.body
    document = json.loads(text) if text.startswith("{") else {"message": text}
    assert (real.status, real.document) == (played.status, document)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DraApiServer]:
    """The API server of the tests of driver pods and of the device agent."""
    certificates = make_certificates(tmp_path_factory.mktemp("certificates"))
    server = DraApiServer(tmp_path_factory.mktemp("pod") / "credentials", certificates)
    yield server
    server._http.server_close()


def ask(server: DraApiServer, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    given = {"Authorization": f"Bearer {TOKEN}"}
    return server.answer(Seen(method, path, "", given, body))


def both(
    plane: ControlPlane, server: DraApiServer, method: str, path: str, body: Any = None, **more: str
) -> tuple[tuple[int, Any], tuple[int, Any]]:
    real = plane.request(method, path, body, **more)
    return (real.status, real.document), ask(server, method, path, body)


def test_an_event_that_is_there_is_refused_in_the_same_words(
    control_plane: ControlPlane, played: DraApiServer
) -> None:
    first = both(control_plane, played, "POST", EVENTS, EVENT)
    real, fake = both(control_plane, played, "POST", EVENTS, EVENT)
    control_plane.do("DELETE", f"{EVENTS}/answers")

    assert [status for status, _ in first] == [201, 201]
    assert real == fake
    assert real[1]["reason"] == "AlreadyExists"


def test_slices_are_refused_in_the_same_words(
    control_plane: ControlPlane, played: DraApiServer
) -> None:
    both(control_plane, played, "POST", SLICES, SLICE)
    old = {**SLICE, "metadata": {"name": "answers", "resourceVersion": "1"}}
    played.slices["answers"]["metadata"]["resourceVersion"] = "2"
    other = {**SLICE, "metadata": {"name": "none", "resourceVersion": "1"}}
    answers = [
        both(control_plane, played, "POST", SLICES, SLICE),
        both(control_plane, played, "PUT", f"{SLICES}/answers", old),
        both(control_plane, played, "PUT", f"{SLICES}/none", other),
        both(control_plane, played, "DELETE", f"{SLICES}/none"),
    ]
    control_plane.do("DELETE", f"{SLICES}/answers")

    for real, fake in answers:
        assert real == fake
    assert [real[0] for real, _ in answers] == [409, 409, 404, 404]


def test_a_token_that_is_none_is_refused_in_the_same_words(
    control_plane: ControlPlane, played: DraApiServer
) -> None:
    real = control_plane.request("GET", "/api/v1/nodes", token="none")
    fake = played.answer(Seen("GET", "/api/v1/nodes", "", {"Authorization": "Bearer none"}, None))

    assert (real.status, real.document) == fake


def test_the_labels_of_a_node_are_answered_as_metadata_only_and_a_status_has_no_subresource(
    control_plane: ControlPlane, installed: InstallSettings, nodes: Nodes, played: DraApiServer
) -> None:
    nodes.create(NODE)
    change = {"metadata": {"labels": {"nodeside.io/edu.state": "ready"}}}
    session = control_plane._session()
    real = session.patch(
        f"{control_plane.url}/api/v1/nodes/{NODE}",
        json=change,
        headers={
            "Content-Type": MERGE_PATCH,
            "Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        },
    ).json()
    _, fake = ask(played, "PATCH", f"/api/v1/nodes/{NODE}", change)

    assert {key: real[key] for key in ("kind", "apiVersion")} == {
        key: fake[key] for key in ("kind", "apiVersion")
    }
    assert fake["metadata"].keys() <= real["metadata"].keys()

    path = f"/apis/{API_VERSION}/nodedrivers/{NODE_DRIVER}/status?fieldManager=a&force=true"
    body = {"apiVersion": API_VERSION, "kind": "NodeDriver", "metadata": {"name": NODE_DRIVER}}
    refused = control_plane.request("PATCH", path, body, content_type=APPLY_PATCH)
    assert (refused.status, refused.document) == ask(played, "PATCH", path.partition("?")[0], body)


def test_a_watch_from_too_far_back_ends_in_the_same_shape(control_plane: ControlPlane) -> None:
    query = "watch=true&resourceVersion=1&timeoutSeconds=5"
    url = f"{control_plane.url}{CONFIG_MAPS.path()}?{query}"
    real = json.loads(control_plane._session().get(url).text.splitlines()[0])
    fake = json.loads(scripted.gone())

    assert real["object"].pop("message").startswith("too old resource version: ")
    assert fake["object"].pop("message").startswith("too old resource version: ")
    assert real == fake
