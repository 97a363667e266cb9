"""What a device agent may do with its token, and what somebody may do who has stolen it.

Real tokens, real RBAC, real admission policies. What is allowed is done by the agent's own code;
what is refused is tried with the same token and plain requests, and the words are the API server's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.install.manifests import InstallSettings
from cluster.model.names import DEVICE_AGENT, NAMESPACE
from nodeside.device_agent.dra.api import DraClient
from nodeside.device_agent.dra.publisher import Publication
from nodeside.device_agent.dra.slices import device_document
from nodeside.device_agent.feature_sinks import CALLER, NodeLabels
from nodeside.device_agent.inventory import OfferedDevice
from nodeside.devices.discovery import FoundDevice
from nodeside.http.status import KubernetesError
from nodeside.kube.client import Client, PodAccess
from nodeside.protocol.labels import API_VERSION, dra_driver
from tests.cluster.fakes.driverpods import Identity, identity, make_pod
from tests.controlplane.api_server import MERGE_PATCH, Answer
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes

pytestmark = pytest.mark.cluster

OURS, OTHER = "agent-1.example.com", "agent-2.example.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
FEATURE = "feature.nodeside.io/edu.count"


@pytest.fixture(scope="module", autouse=True)
def two_nodes(control_plane: ControlPlane, installed: InstallSettings) -> Iterator[Nodes]:
    nodes = Nodes(control_plane)
    nodes.create(OURS, labels={"team": "storage", "feature.nodeside.io/edu2.count": "1"})
    nodes.create(OTHER)
    yield nodes
    nodes.clear()


def agent_pod(control_plane: ControlPlane, node: str, name: str) -> Mapping[str, Any]:
    return make_pod(control_plane, node, name=name, account=DEVICE_AGENT)


@pytest.fixture(scope="module")
def stolen(
    control_plane: ControlPlane, two_nodes: Nodes, tmp_path_factory: pytest.TempPathFactory
) -> Identity:
    """The token of the agent of `edu` on our node."""
    pod = agent_pod(control_plane, OURS, "edu-devices-x7k2p")
    directory = tmp_path_factory.mktemp("token")
    return identity(control_plane, directory, pod, account=DEVICE_AGENT)


@pytest.fixture(scope="module")
def neighbour(
    control_plane: ControlPlane, two_nodes: Nodes, tmp_path_factory: pytest.TempPathFactory
) -> Identity:
    """The same of the other node."""
    pod = agent_pod(control_plane, OTHER, "edu-devices-b4c9z")
    directory = tmp_path_factory.mktemp("token")
    return identity(control_plane, directory, pod, account=DEVICE_AGENT)


def sink(who: Identity, node: str, driver: str = "edu") -> NodeLabels:
    access = PodAccess(who.control_plane.url, who.directory)
    return NodeLabels(Client(access, CALLER), node, driver)


def send(who: Identity, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
    content_type = MERGE_PATCH if method == "PATCH" else "application/json"
    return who.control_plane.request(method, path, body, content_type=content_type, token=who.token)


def test_an_agent_publishes_and_withdraws_its_devices_as_its_own_code_does(
    stolen: Identity,
) -> None:
    dra = DraClient(PodAccess(stolen.control_plane.url, stolen.directory))
    publication = Publication(dra, dra_driver("edu"), OURS)
    offered = OfferedDevice("00:06.0", FoundDevice("00:06.0"))
    for now, devices in enumerate(([offered], [], [offered], [])):
        publication.set_devices(
            [
                device_document("edu-00-06-0", each, resource="example.com/edu", version="1.0.0")
                for each in devices
            ]
        )
        publication.publish_if_due(now * 2.0)
        assert len(dra.list_slices(dra_driver("edu"), OURS)) == len(devices)
    dra.close()


# --- labels --------------------------------------------------------------------------------------


def test_an_agent_labels_its_node_and_takes_stale_labels_of_its_own_away(
    stolen: Identity, two_nodes: Nodes
) -> None:
    before = two_nodes.get(OURS)["metadata"]["labels"]
    ours = sink(stolen, OURS)
    ours.write_labels({FEATURE: "2", "feature.nodeside.io/edu.revision": "0x10"})
    assert two_nodes.get(OURS)["metadata"]["labels"] == before | {
        FEATURE: "2",
        "feature.nodeside.io/edu.revision": "0x10",
    }
    ours.write_labels({FEATURE: "1"})
    assert two_nodes.get(OURS)["metadata"]["labels"] == before | {FEATURE: "1"}


def test_an_agent_labels_no_other_node(stolen: Identity, two_nodes: Nodes) -> None:
    with pytest.raises(KubernetesError) as caught:
        sink(stolen, OTHER).write_labels({FEATURE: "2"})
    assert (
        f"a device agent may change its own node only: this token is of a pod on {OURS}, not on "
        f"{OTHER}"
    ) in str(caught.value)
    assert FEATURE not in two_nodes.get(OTHER)["metadata"]["labels"]


def labelled(key: str, value: str | None = "1") -> dict[str, Any]:
    return {"metadata": {"labels": {key: value}}}


ONLY = "a device agent may change labels that begin with feature.nodeside.io/edu. only, not "


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (labelled("team", "network"), ONLY + "team"),
        (labelled("team", None), ONLY + "team"),
        (labelled("nodeside.io/edu.state", "ready"), ONLY + "nodeside.io/edu.state"),
        (labelled("feature.nodeside.io/edu2.count", "9"), ONLY + "feature.nodeside.io/edu2.count"),
        (labelled("feature.nodeside.io/edu2.count", None), ONLY),
        (labelled("feature.nodeside.io/edu"), ONLY + "feature.nodeside.io/edu"),
        (labelled("x.feature.nodeside.io/edu.a"), ONLY + "x.feature.nodeside.io/edu.a"),
        (labelled("node-role.kubernetes.io/control-plane", ""), ONLY),
        (
            {"metadata": {"labels": {f"feature.nodeside.io/edu.a{n}": "1" for n in range(259)}}},
            "a driver has at most 258 feature labels on a node",
        ),
        ({"spec": {"unschedulable": True}}, "may not change the spec of a node"),
        (
            {"spec": {"taints": [{"key": "mine", "effect": "NoExecute"}]}},
            "may not change the spec of a node",
        ),
        ({"metadata": {"annotations": {"mine": "1"}}}, "may not change the annotations of a node"),
        (
            {"metadata": {"finalizers": ["mine.example.com/stay"]}},
            "may not change the finalizers of a node",
        ),
    ],
)
def test_of_its_node_a_stolen_token_changes_nothing_else(
    stolen: Identity, two_nodes: Nodes, change: Mapping[str, Any], words: str
) -> None:
    before = two_nodes.get(OURS)["metadata"]["labels"]
    answer = send(stolen, "PATCH", f"/api/v1/nodes/{OURS}", change)
    assert answer.status in (403, 422)  # the limit is a value that is wrong
    assert words in answer.message
    assert two_nodes.get(OURS)["metadata"]["labels"] == before


# --- ResourceSlices ------------------------------------------------------------------------------


def slice_name(node: str = OURS, number: str = "0") -> str:
    return f"edu.nodeside.io-{node}-{number}"


def slice_of(
    node: str | None = OURS, *, driver: str = "edu.nodeside.io", name: str = "", **spec: Any
) -> dict[str, Any]:
    """A ResourceSlice with one device; without a node, of all nodes."""
    name = name or slice_name(node or OURS)
    where = {"nodeName": node} if node else {"allNodes": True}
    pool = {"name": node or OURS, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": pool, "devices": [{"name": "d0"}], **where, **spec},
    }


@pytest.fixture
def kept(control_plane: ControlPlane) -> Iterator[None]:
    yield
    for found in control_plane.do("GET", SLICES)["items"]:
        control_plane.do("DELETE", f"{SLICES}/{found['metadata']['name']}")


def owned(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    metadata = node["metadata"]
    return [{"apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"]}]


def test_an_agent_publishes_changes_and_removes_slices_of_its_node(
    stolen: Identity, two_nodes: Nodes, kept: None
) -> None:
    document = slice_of()
    document["metadata"]["ownerReferences"] = owned(two_nodes.get(OURS))
    made = send(stolen, "POST", SLICES, document)
    assert made.status == 201, made.message
    changed = {**made.document, "spec": made.document["spec"] | {"devices": []}}
    changed["spec"]["pool"]["generation"] = 2
    assert send(stolen, "PUT", f"{SLICES}/{slice_name()}", changed).status == 200
    found = send(stolen, "GET", f"{SLICES}?fieldSelector=spec.nodeName%3D{OURS}")
    assert [each["metadata"]["name"] for each in found.document["items"]] == [slice_name()]
    assert send(stolen, "DELETE", f"{SLICES}/{slice_name()}").status == 200


OWN_NODE = (
    "a device agent may write ResourceSlices of its own node only: this token is of a pod on "
    f"{OURS}"
)
OWN_DRIVER = "a device agent may write ResourceSlices of its own driver only: edu.nodeside.io"
OWN_POOL = f"the pool of a device agent's ResourceSlice is that of its node: {OURS}"
OWN_NAME = f"a device agent's ResourceSlice is called edu.nodeside.io-{OURS}-<number>"
POOL = {"generation": 9, "resourceSliceCount": 1}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (slice_of(OTHER), OWN_NODE),
        (slice_of(None), OWN_NODE),
        (slice_of(driver="gpu.example.com"), OWN_DRIVER),
        (slice_of(driver="nic.nodeside.io"), OWN_DRIVER),
        (slice_of(driver="edu.nodeside.io.example.com"), OWN_DRIVER),
        (slice_of(pool={"name": OTHER, **POOL}), OWN_POOL),
        (slice_of(pool={"name": f"{OURS}x", **POOL}), OWN_POOL),
        (slice_of(name=slice_name(OTHER)), OWN_NAME),
        (slice_of(name=slice_name(f"{OURS}-b")), OWN_NAME),
        (slice_of(name=slice_name(number="1000")), OWN_NAME),
        (slice_of(name="mine"), OWN_NAME),
        (slice_of() | {"metadata": {"generateName": slice_name(number="")}}, OWN_NAME),
        (
            slice_of() | {"metadata": {"name": slice_name(), "finalizers": ["example.com/stay"]}},
            "a device agent's ResourceSlice has no finalizers",
        ),
        (
            slice_of()
            | {
                "metadata": {
                    "name": slice_name(),
                    "ownerReferences": owned({"metadata": {"name": OTHER, "uid": "u"}}),
                }
            },
            "the owner of a device agent's ResourceSlice is its node",
        ),
    ],
    ids=[
        *("another node", "no node name", "another driver", "another of ours", "a longer driver"),
        *("another pool", "a longer pool", "the name of another", "the name of a longer node"),
        *("a name of four digits", "an odd name", "no name", "finalizers", "another owner"),
    ],
)
def test_a_stolen_token_publishes_no_other_slice(
    stolen: Identity, document: Mapping[str, Any], words: str, control_plane: ControlPlane
) -> None:
    answer = send(stolen, "POST", SLICES, document)
    assert answer.status == 403
    assert words in answer.message
    assert control_plane.do("GET", SLICES)["items"] == []


def test_a_stolen_token_touches_no_slice_of_somebody_else(
    stolen: Identity, neighbour: Identity, control_plane: ControlPlane, kept: None
) -> None:
    assert send(neighbour, "POST", SLICES, slice_of(OTHER)).status == 201
    vendor = slice_of(driver="gpu.example.com", name="vendor")
    control_plane.do("POST", SLICES, vendor)
    for name, words in ((slice_name(OTHER), OWN_NODE), ("vendor", OWN_DRIVER)):
        document = control_plane.do("GET", f"{SLICES}/{name}")
        changed = {**document, "spec": document["spec"] | {"devices": []}}
        # An update that only looks like one of its own: the old object counts, too.
        for method, body in (("PUT", changed), ("PUT", document), ("DELETE", None)):
            answer = send(stolen, method, f"{SLICES}/{name}", body)
            assert (method, answer.status) == (method, 403)
            assert words in answer.message
        assert control_plane.do("GET", f"{SLICES}/{name}")["spec"] == document["spec"]


# --- everything else -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "verb"),
    [
        ("GET", "/api/v1/nodes", 'cannot list resource "nodes"'),
        ("DELETE", f"/api/v1/nodes/{OURS}", 'cannot delete resource "nodes"'),
        ("PATCH", f"/api/v1/nodes/{OURS}/status", 'cannot patch resource "nodes/status"'),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", 'cannot list resource "secrets"'),
        ("GET", "/api/v1/pods", 'cannot list resource "pods"'),
        ("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", 'cannot create resource "pods"'),
        ("GET", f"/apis/{API_VERSION}/drivers", 'cannot list resource "drivers"'),
        ("PATCH", f"/apis/{API_VERSION}/nodedrivers/x", 'cannot patch resource "nodedrivers"'),
        ("DELETE", SLICES, 'cannot deletecollection resource "resourceslices"'),
        ("GET", "/apis/resource.k8s.io/v1/resourceclaims", 'cannot list resource "resourceclaims"'),
        ("GET", "/apis/resource.k8s.io/v1/deviceclasses", 'cannot list resource "deviceclasses"'),
        (
            "PATCH",
            "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/x/status",
            'cannot patch resource "resourceclaims/status"',
        ),
    ],
)
def test_the_role_allows_an_agent_nothing_else(
    stolen: Identity, method: str, path: str, verb: str
) -> None:
    body: Mapping[str, Any] | None = {} if method in ("PATCH", "POST") else None
    answer = send(stolen, method, path, body)
    assert answer.status == 403
    assert verb in answer.message


def test_a_token_of_no_pod_or_of_a_pod_of_another_name_may_do_nothing(
    control_plane: ControlPlane, two_nodes: Nodes, tmp_path: Path
) -> None:
    nowhere = identity(control_plane, tmp_path / "a", None, account=DEVICE_AGENT)
    pod = agent_pod(control_plane, OURS, "edu-0123456789ab-x7k2p")
    misnamed = identity(control_plane, tmp_path / "b", pod, account=DEVICE_AGENT)
    for who, words in (
        (nowhere, "a device agent acts with the token of its pod, and this token is bound to no"),
        (misnamed, "made is called edu-0123456789ab-x7k2p"),
    ):
        with pytest.raises(KubernetesError, match=words):
            sink(who, OURS).write_labels({FEATURE: "3"})
        answer = send(who, "POST", SLICES, slice_of())
        assert answer.status == 403
        assert words in answer.message
