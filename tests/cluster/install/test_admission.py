"""A driver pod may speak for its own node only: real tokens, real RBAC, real admission policies.

What is allowed is done by the node side's own announcing code. What is refused is tried with the
same token and plain requests, and the words are the API server's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.install.manifests import InstallSettings
from cluster.model.names import CONTROLLER, CORDONED, DRIVER, NAMESPACE
from nodeside.driver.announce.announcer import Announcer
from nodeside.driver.announce.api import StatusClient
from nodeside.driver.announce.delivery import Delivery
from nodeside.driver.announce.documents import event_document, node_driver_document
from nodeside.http.status import KubernetesError
from nodeside.kube.client import PodAccess
from nodeside.protocol.labels import API_VERSION
from nodeside.protocol.node_status import NodeDriverStatus, Rung, State
from nodeside.system.host import Host
from tests.cluster.fakes.driverpods import Identity, identity, make_pod
from tests.controlplane.api_server import MERGE_PATCH, Answer
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.patience import patience
from tests.spec.documents import document

pytestmark = pytest.mark.cluster

OURS, OTHER = "admission-1.example.com", "admission-2.example.com"
STATE = "nodeside.io/edu.state"
LONG = patience(60.0)  # seconds: a deadline that only a broken test meets
LYING_STATE = "nodeside.io/lying.state"
READY = NodeDriverStatus(
    driver="edu",
    node=OURS,
    state=State.READY,
    version="1.0",
    kernel="6.1.0-50-cloud-amd64",
    boot_id="2c4a7ba8-2e9b-4d4c-9f2e-1d2f3a4b5c6d",
    source=Rung.BUILT,
    modules=("edu",),
)
Send = Callable[[Identity, Mapping[str, Any]], Answer]


@pytest.fixture(scope="module", autouse=True)
def two_nodes(control_plane: ControlPlane, installed: InstallSettings) -> Iterator[Nodes]:
    nodes = Nodes(control_plane)
    nodes.create(OURS, labels={"team": "storage"})
    nodes.create(OTHER)
    yield nodes
    nodes.clear()


@pytest.fixture(scope="module")
def pod(
    control_plane: ControlPlane, two_nodes: Nodes, tmp_path_factory: pytest.TempPathFactory
) -> Identity:
    """A driver pod on our node."""
    made = make_pod(control_plane, OURS)
    return identity(control_plane, tmp_path_factory.mktemp("token"), made)


@pytest.fixture(scope="module")
def lying(
    control_plane: ControlPlane, two_nodes: Nodes, tmp_path_factory: pytest.TempPathFactory
) -> Identity:
    """A pod of another driver on that node, of which there is no NodeDriver yet."""
    made = make_pod(control_plane, OURS, driver="lying")
    return identity(control_plane, tmp_path_factory.mktemp("token"), made)


@pytest.fixture(scope="module")
def nowhere(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The same service account, with a token of no pod."""
    return identity(control_plane, tmp_path_factory.mktemp("token"), None)


def patch_node(who: Identity, node: str, change: Mapping[str, Any]) -> Answer:
    return who.control_plane.request(
        "PATCH", f"/api/v1/nodes/{node}", change, content_type=MERGE_PATCH, token=who.token
    )


def labelled(**labels: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": labels}}


def test_a_driver_pod_announces_its_state_with_its_own_token(
    control_plane: ControlPlane, pod: Identity, two_nodes: Nodes, tmp_path: Path
) -> None:
    delivery = Delivery(pod.api)
    with Announcer(Host(tmp_path), delivery, marker_to=None) as announcer:
        announcer.report_state(READY)
        assert announcer.flush(LONG)

    node = two_nodes.get(OURS)
    assert node["metadata"]["labels"][STATE] == "ready"
    found = control_plane.do("GET", f"/apis/{API_VERSION}/nodedrivers/edu.{OURS}")
    assert found["status"]["state"] == "ready"
    assert found["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    events = "/apis/events.k8s.io/v1/namespaces/default/events"
    told = [e for e in control_plane.do("GET", events)["items"] if e["regarding"]["name"] == OURS]
    assert [e["reason"] for e in told if "nodeside" in e["reportingController"]] == ["DriverReady"]


class Unlabelled(StatusClient):
    """The API of a driver pod whose label a policy of the cluster refuses."""

    def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
        raise KubernetesError("refused by a policy of the cluster")


def test_where_the_label_is_refused_first_the_node_driver_has_its_owner_all_the_same(
    control_plane: ControlPlane, pod: Identity, two_nodes: Nodes, tmp_path: Path
) -> None:
    """Where owner references are checked, as here and on OpenShift, none can be added later."""
    first = replace(READY, driver="late", state=State.BUILDING)
    made = make_pod(control_plane, OURS, driver="late")
    late = identity(control_plane, tmp_path / "late", made)
    unlabelled = Unlabelled(PodAccess(control_plane.url, late.directory))
    for api, status in ((unlabelled, first), (late.api, replace(first, state=State.READY))):
        with Announcer(Host(tmp_path), Delivery(api), marker_to=None) as announcer:
            announcer.report_state(status)
            assert announcer.flush(LONG)

    found = control_plane.do("GET", f"/apis/{API_VERSION}/nodedrivers/late.{OURS}")
    assert found["status"]["state"] == "ready"
    [owner] = found["metadata"]["ownerReferences"]
    assert owner["uid"] == two_nodes.get(OURS)["metadata"]["uid"]


def test_the_label_of_another_node_is_refused(pod: Identity) -> None:
    with pytest.raises(KubernetesError) as caught:
        pod.api.patch_node_labels(OTHER, {STATE: "ready"})
    assert caught.value.status == 403
    assert (
        f"a driver pod may change its own node only: this token is of a pod on {OURS}, not on "
        f"{OTHER}"
    ) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (labelled(team="network"), "may set the state label of its driver only, not team"),
        (
            {"metadata": {"labels": {"nodeside.io/edu.assigned": "3f2a9c01b7de"}}},
            "may set the state label of its driver only, not nodeside.io/edu.assigned",
        ),
        (
            {"metadata": {"labels": {LYING_STATE: "ready"}}},
            f"may set the state label of its driver only, not {LYING_STATE}",
        ),
        (
            {"metadata": {"labels": {STATE: "splendid"}}},
            "a state label has one of the values waiting, building, loading, ready, failed",
        ),
        (labelled(team=None), "a driver pod may not remove labels of a node: team"),
        ({"metadata": {"labels": {STATE: None}}}, f"may not remove labels of a node: {STATE}"),
        ({"spec": {"unschedulable": True}}, "a driver pod may not change the spec of a node"),
        (
            {"spec": {"taints": [{"key": "mine", "effect": "NoExecute"}]}},
            "a driver pod may not change the spec of a node",
        ),
        (
            {"metadata": {"annotations": {"mine": "1"}}},
            "a driver pod may not change the annotations of a node",
        ),
        (
            {"metadata": {"finalizers": ["mine.example.com/stay"]}},
            "a driver pod may not change the finalizers of a node",
        ),
    ],
)
def test_of_its_own_node_it_may_change_nothing_else(
    pod: Identity, two_nodes: Nodes, change: dict[str, Any], words: str
) -> None:
    pod.api.patch_node_labels(OURS, {STATE: "ready"})
    before = two_nodes.get(OURS)["metadata"]["labels"]
    answer = patch_node(pod, OURS, change)
    assert answer.status == 403
    assert words in answer.message
    assert two_nodes.get(OURS)["metadata"]["labels"] == before


def test_the_node_driver_of_another_node_is_refused(pod: Identity) -> None:
    foreign = node_driver_document(READY)
    foreign["metadata"]["name"] = f"edu.{OTHER}"
    with pytest.raises(KubernetesError) as caught:
        pod.api.apply_node_driver(foreign)
    assert ("may write its own NodeDriver only: this token is of pod edu-0123456789ab-") in str(
        caught.value
    )
    assert f" on {OURS}, so not edu.{OTHER}" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"status": node_driver_document(READY)["status"] | {"driver": "lying", "node": OTHER}},
            "the driver and the node in the status of a NodeDriver are those of its name",
        ),
        (
            {"metadata": {"name": f"lying.{OURS}", "finalizers": ["mine.example.com/stay"]}},
            "a NodeDriver has no finalizers",
        ),
        (
            {
                "metadata": {
                    "name": f"lying.{OURS}",
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Node", "name": OTHER, "uid": "1"}
                    ],
                }
            },
            "the owner of a NodeDriver is its node",
        ),
        (
            {"metadata": {"name": f"lying.{OURS}", "annotations": {"long": "x" * 200_000}}},
            "may not change the labels and annotations of its NodeDriver",
        ),
        (
            {"metadata": {"name": f"lying.{OURS}", "labels": {"team": "storage"}}},
            "may not change the labels and annotations of its NodeDriver",
        ),
        *(
            (
                {"metadata": {"name": f"lying.{OURS}", "labels": {f"nodeside.io/{key}": value}}},
                "the labels of a NodeDriver are the driver and the state in its status",
            )
            for key, value in (("driver", "edu"), ("state", "failed"))
        ),
        (
            {
                "status": node_driver_document(READY)["status"]
                | {"driver": "lying", "message": "x" * 1025}
            },
            "may not be more than 1024 bytes",
        ),
        (
            {
                "status": node_driver_document(READY)["status"]
                | {"driver": "lying", "modules": ["m"] * 65}
            },
            "must have at most 64 items",
        ),
    ],
)
def test_its_own_node_driver_may_not_lie(
    lying: Identity, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(KubernetesError) as caught:
        lying.api.apply_node_driver(node_driver_document(replace(READY, driver="lying")) | change)
    assert words in str(caught.value)


def test_a_pod_of_an_older_image_may_report_without_the_labels(
    pod: Identity, two_nodes: Nodes
) -> None:
    uid = two_nodes.get(OURS)["metadata"]["uid"]
    pod.api.apply_node_driver(node_driver_document(READY, node_uid=uid))
    older = node_driver_document(READY, node_uid=uid)
    del older["metadata"]["labels"], older["status"]["conditions"]
    pod.api.apply_node_driver(older)


@pytest.mark.parametrize("driver", ["lying", "edu-0123456789ab", "ed", "x"])
def test_a_driver_pod_writes_no_node_driver_but_that_of_its_driver(
    pod: Identity, driver: str
) -> None:
    with pytest.raises(KubernetesError, match="may write its own NodeDriver only"):
        pod.api.apply_node_driver(node_driver_document(replace(READY, driver=driver)))


def test_a_pod_that_unloads_speaks_for_its_driver_and_one_of_another_name_for_none(
    control_plane: ControlPlane, two_nodes: Nodes, tmp_path: Path
) -> None:
    gone = node_driver_document(replace(READY, driver="gone"))
    unloads = make_pod(control_plane, OURS, name="gone-unload-0123456789ab")
    identity(control_plane, tmp_path / "a", unloads).api.apply_node_driver(gone)

    other = identity(control_plane, tmp_path / "b", make_pod(control_plane, OURS, name="gone-mine"))
    for act in (
        lambda: other.api.apply_node_driver(gone),
        lambda: other.api.patch_node_labels(OURS, {"nodeside.io/gone.state": "ready"}),
    ):
        with pytest.raises(KubernetesError, match="made is called gone-mine"):
            act()


def test_what_a_node_cuts_the_api_server_takes_and_nothing_longer(
    control_plane: ControlPlane, two_nodes: Nodes, tmp_path: Path
) -> None:
    """A schema has no limit for the keys of a mapping; the policy has."""
    long = identity(control_plane, tmp_path, make_pod(control_plane, OURS, driver="long"))
    said = replace(READY, driver="long", message="\u00e4" * 5000)
    long.api.apply_node_driver(node_driver_document(replace(said, modules=("m" * 2000,) * 100)))

    answer = control_plane.request(
        "PATCH",
        f"/apis/{API_VERSION}/nodedrivers/long.{OURS}",
        {"status": {"stages": {"s" * 1025: 1.0}}},
        content_type=MERGE_PATCH,
        token=long.token,
    )
    assert "no text of a NodeDriver is longer than 1024 characters" in answer.message


def test_a_name_that_ends_like_its_own_is_not_its_own(
    control_plane: ControlPlane, pod: Identity, two_nodes: Nodes
) -> None:
    """A node `x.<our node>` has NodeDrivers whose names end as ours do."""
    two_nodes.create(f"x.{OURS}", ready=False)
    foreign = node_driver_document(READY)
    foreign["metadata"]["name"] = f"edu.x.{OURS}"
    with pytest.raises(KubernetesError, match="may write its own NodeDriver only"):
        pod.api.apply_node_driver(foreign)


def test_an_event_about_another_node_is_refused(pod: Identity) -> None:
    document = event_document(READY, node_uid="", now=1.0)
    document["regarding"]["name"] = OTHER
    with pytest.raises(KubernetesError, match="may tell Events of its own node only"):
        pod.api.create_event(document)


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "b"}},
        {"annotations": {"a": "x" * 9999}},
        {"finalizers": ["example.com/never"]},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": OURS, "uid": "u"}]},
    ],
    ids=lambda metadata: str(next(iter(metadata))),
)
def test_an_event_says_what_it_says_and_has_nothing_attached(
    pod: Identity, metadata: dict[str, Any]
) -> None:
    document = event_document(READY, node_uid="", now=2.0)
    document["metadata"] |= metadata
    with pytest.raises(KubernetesError, match="an Event of a driver pod has no labels"):
        pod.api.create_event(document)


def test_a_token_of_no_pod_may_do_nothing(nowhere: Identity) -> None:
    words = "acts with the token of its pod, and this token is bound to no pod on a node"
    with pytest.raises(KubernetesError, match=words):
        nowhere.api.patch_node_labels(OURS, {STATE: "ready"})
    with pytest.raises(KubernetesError, match=words):
        nowhere.api.apply_node_driver(node_driver_document(replace(READY, driver="lying")))
    with pytest.raises(KubernetesError, match=words):
        nowhere.api.create_event(event_document(READY, node_uid="", now=1.0))


@pytest.mark.parametrize(
    ("method", "path", "verb"),
    [
        ("GET", "/api/v1/nodes", 'cannot list resource "nodes"'),
        ("DELETE", f"/api/v1/nodes/{OURS}", 'cannot delete resource "nodes"'),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", 'cannot list resource "secrets"'),
        ("GET", f"/apis/{API_VERSION}/drivers", 'cannot list resource "drivers"'),
        ("DELETE", f"/apis/{API_VERSION}/nodedrivers/edu.{OURS}", 'cannot delete resource "nodedr'),
        ("PATCH", f"/api/v1/nodes/{OURS}/status", 'cannot patch resource "nodes/status"'),
        ("GET", "/api/v1/pods", 'cannot list resource "pods"'),
    ],
)
def test_roles_allow_a_driver_pod_nothing_else(
    pod: Identity, method: str, path: str, verb: str
) -> None:
    body: Mapping[str, Any] | None = {"status": {}} if method == "PATCH" else None
    answer = pod.control_plane.request(
        method, path, body, content_type=MERGE_PATCH, token=pod.token
    )
    assert answer.status == 403
    assert verb in answer.message


@pytest.fixture(scope="module")
def controller(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Identity:
    directory = tmp_path_factory.mktemp("token")
    return identity(control_plane, directory, None, account=CONTROLLER)


def test_the_controller_assigns_nodes_and_takes_labels_of_ours_away(
    controller: Identity, two_nodes: Nodes
) -> None:
    key = "nodeside.io/edu.assigned"
    assert patch_node(controller, OTHER, {"metadata": {"labels": {key: "0"}}}).status == 200
    assert two_nodes.get(OTHER)["metadata"]["labels"][key] == "0"
    assert patch_node(controller, OTHER, {"metadata": {"labels": {key: None}}}).status == 200
    assert key not in two_nodes.get(OTHER)["metadata"]["labels"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (labelled(team="network"), "may change labels of nodeside.io only, not team"),
        (labelled(team=None), "may change labels of nodeside.io only, not team"),
        (
            {"spec": {"unschedulable": True}},
            f"may cordon a node with the label {CORDONED} only, and uncordon no other",
        ),
        (
            {"spec": {"taints": [{"key": "mine", "effect": "NoExecute"}]}},
            "may cordon a node, and not change the taints in its spec",
        ),
        (
            {"metadata": {"annotations": {"mine": "1"}}},
            "may not change the annotations of a node",
        ),
    ],
)
def test_the_controller_may_change_nothing_else_of_a_node(
    controller: Identity, change: dict[str, Any], words: str
) -> None:
    answer = patch_node(controller, OURS, change)
    assert answer.status == 403
    assert words in answer.message


def test_the_controller_uncordons_what_it_cordoned(controller: Identity, two_nodes: Nodes) -> None:
    mine: dict[str, Any] = {"metadata": {"labels": {CORDONED: "true"}}}
    done: dict[str, Any] = {"metadata": {"labels": {CORDONED: None}}}

    answer = patch_node(controller, OTHER, mine | {"spec": {"unschedulable": True}})
    assert answer.status == 200
    assert two_nodes.get(OTHER)["spec"]["unschedulable"] is True
    assert patch_node(controller, OTHER, done | {"spec": {"unschedulable": None}}).status == 200
    assert "unschedulable" not in two_nodes.get(OTHER)["spec"]


def test_the_controller_neither_takes_over_nor_ends_the_cordon_of_somebody_else(
    control_plane: ControlPlane, controller: Identity, two_nodes: Nodes
) -> None:
    control_plane.kubectl("cordon", OTHER)
    mine: dict[str, Any] = {"metadata": {"labels": {CORDONED: "true"}}}

    taken = patch_node(controller, OTHER, mine)
    ended = patch_node(controller, OTHER, {"spec": {"unschedulable": None}})

    assert taken.status == ended.status == 403
    assert "may not take over a node that somebody else cordoned" in taken.message
    assert "and uncordon no other" in ended.message
    assert two_nodes.get(OTHER)["spec"]["unschedulable"] is True
    control_plane.kubectl("uncordon", OTHER)


def test_others_are_not_concerned(two_nodes: Nodes) -> None:
    """An administrator, NFD and the like change nodes as ever."""
    two_nodes.label(OTHER, {"team": "compute", STATE: "failed"})
    two_nodes.label(OTHER, {"team": None, STATE: None})
    assert "team" not in two_nodes.get(OTHER)["metadata"]["labels"]


def test_the_api_server_finds_no_fault_with_the_policies(control_plane: ControlPlane) -> None:
    """It checks the types of the expressions after a policy was written."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def policies() -> list[Mapping[str, Any]]:
        return [
            policy
            for policy in control_plane.do("GET", path)["items"]
            if policy["metadata"]["name"].startswith("nodeside-")
        ]

    def checked() -> bool:
        return all("typeChecking" in policy.get("status", {}) for policy in policies())

    control_plane.wait_for(checked, "the policies to be type-checked")
    warnings = {p["metadata"]["name"]: p["status"]["typeChecking"] for p in policies()}
    assert len(warnings) == 9
    assert {name: said.get("expressionWarnings", []) for name, said in warnings.items()} == {
        name: [] for name in warnings
    }


def test_the_accounts_are_those_that_pods_name(control_plane: ControlPlane) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{DRIVER}"
    assert control_plane.do("GET", path)["automountServiceAccountToken"] is False


# --- who writes Drivers --------------------------------------------------------------------------


IMAGE = "registry.example.com/drivers/edu:1.0"
PCI = {"hardware": {"pci": [{"vendor": "1234"}]}}
EVERY_NODE = "without spec.hardware this Driver is for every node"
EMPTIED = "spec.modules is empty now: the nodes of this Driver load none of its modules any more"


@pytest.fixture
def warned(control_plane: ControlPlane) -> Iterator[Driven]:
    yield Driven(control_plane)
    control_plane.kubectl("delete", "--ignore-not-found", "driver", "warned")


class Driven:
    """Writes of one Driver by kubectl."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane

    def apply(self, **spec: Any) -> str:
        """What kubectl warns of."""
        wanted = document(image=IMAGE, **spec) | {"metadata": {"name": "warned"}}
        done = self.control_plane.kubectl("apply", "-f", "-", input=json.dumps(wanted))
        return done.errors

    def patch(self, **spec: Any) -> str:
        words = ("patch", "driver", "warned", "--type=merge", "-p", json.dumps({"spec": spec}))
        return self.control_plane.kubectl(*words).errors


@pytest.mark.parametrize("hardware", [{}, {"hardware": {}}, {"hardware": {"pci": []}}])
def test_a_driver_for_every_node_is_a_warning(warned: Driven, hardware: dict[str, Any]) -> None:
    assert EVERY_NODE in warned.apply(**hardware)
    assert warned.apply(**hardware) == "", "nothing has changed"
    assert EVERY_NODE not in warned.apply(**PCI)
    assert EVERY_NODE not in warned.apply(hardware={"nodeSelector": {"a": "b"}})


def test_to_empty_the_modules_is_a_warning(warned: Driven) -> None:
    counted = {"resource": "example.com/edu", "discover": {"count": 1}}
    assert warned.apply(**PCI, devices=[counted]) == ""
    assert EMPTIED in warned.patch(modules=[])
    assert warned.patch(version="2.0") == "", "they were empty before"
    assert warned.patch(modules=[{"name": "edu"}]) == ""
