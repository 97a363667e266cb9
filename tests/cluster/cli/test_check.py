"""`nodeside-cluster check`: a cluster in which all holds, and each thing that may not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.cli import image_pulls
from cluster.cli.check import Check, CheckState, ClusterCheck, check, wait_until_good
from cluster.install.manifests import InstallSettings
from cluster.kube.client import Api, connect
from cluster.kube.errors import Forbidden, NotFound, RequestInfo, response_error
from cluster.kube.listing import Page
from cluster.kube.resources import (
    ACCESS_REVIEWS,
    CLUSTER_VERSIONS,
    DRIVERS,
    IMAGE_STREAMS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    Resource,
)
from nodeside.errors import ExitCode
from nodeside.spec import parse
from nodeside.spec.model import Driver
from tests.cluster.fakes.scripted import ScriptedServer, kubeconfig
from tests.console import nodeside_cluster as command
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes

KERNEL = "6.1.0-56-cloud-amd64"
POLICIES = "validatingadmissionpolicies"
PCI = {"pci": [{"vendor": "1234", "device": "11e8"}]}
TOOLKIT = {"imageTemplate": "registry.example.com/toolkit:{kernel}"}


def driver(**spec: Any) -> Driver:
    return parse(document(**spec))


def document(name: str = "edu", **spec: Any) -> dict[str, Any]:
    usual = {
        "version": "1.0",
        "image": "registry.example.com/edu:1.0",
        "modules": [{"name": name}],
        "hardware": PCI,
        "toolkit": TOOLKIT,
    }
    return {
        "apiVersion": "nodeside.io/v1alpha1",
        "kind": "Driver",
        "metadata": {"name": name},
        "spec": usual | spec,
    }


def node(name: str, kernel: str = KERNEL, **labels: str) -> dict[str, Any]:
    info = {"kernelVersion": kernel, "architecture": "amd64", "osImage": "Debian GNU/Linux 12"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"nodeInfo": info}}


def labelled(name: str) -> dict[str, Any]:
    return node(name, **{"feature.node.kubernetes.io/pci-1234_11e8.present": "true"})


class FakeCluster:
    """An API server whose answers a test changes."""

    def __init__(self) -> None:
        self.minor = "33"
        self.kinds = frozenset({POLICIES})
        self.denied: set[str] = set()
        self.objects: dict[tuple[Resource, str], dict[str, Any]] = {
            (LEASES, "nodeside-controller"): {
                "spec": {
                    "holderIdentity": "one",
                    "renewTime": "2025-01-01T12:00:00.1Z",
                    "leaseDurationSeconds": 15,
                }
            }
        }
        self.lists: dict[Resource, list[dict[str, Any]]] = {
            NODES: [labelled("n1"), labelled("n2")],
            PODS: [],
        }

    def get_version(self) -> dict[str, Any]:
        return {"major": "1", "minor": self.minor, "gitVersion": f"v1.{self.minor}.0"}

    def served_kinds(self, _group: str) -> frozenset[str]:
        return self.kinds

    def served_schemas(self) -> dict[str, Any]:
        return {}

    def now(self) -> float:
        return 1_735_732_805.0  # five seconds after the leader was heard

    def create(self, document: Mapping[str, Any]) -> dict[str, Any]:
        assert document["kind"] == ACCESS_REVIEWS.kind
        asked = document["spec"]["resourceAttributes"]
        return {"status": {"allowed": f"{asked['verb']} {asked['resource']}" not in self.denied}}

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> dict[str, Any]:
        try:
            return self.objects[resource, name]
        except KeyError:
            raise NotFound(f"{resource.plural} {name} is not there") from None

    def list(
        self, resource: Resource, trim: Callable[[dict[str, Any]], Any], *, namespace: str = ""
    ) -> Page[Any]:
        if resource not in self.lists:
            raise NotFound(f"no {resource.plural} here")
        return Page([trim(each) for each in self.lists[resource]])


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def look(cluster: FakeCluster, wanted: Driver | None = None) -> ClusterCheck:
    return check(cast("Api", cluster), "nodeside", wanted or driver())


def missing(checked: ClusterCheck) -> dict[str, str]:
    return {each.name: each.found for each in checked.checks if each.state is CheckState.MISSING}


def test_a_cluster_that_has_everything_is_good(cluster: FakeCluster) -> None:
    checked = look(cluster)

    assert checked.good, checked.text()
    assert {each.state for each in checked.checks} == {CheckState.OK}
    found = {each.name: each.found for each in checked.checks}
    assert found["hardware of edu"] == "2 of 2 nodes have what `hardware` asks for"
    image = f"registry.example.com/toolkit:{KERNEL}"
    assert found[f"toolkit for {KERNEL} (2 nodes)"].startswith(image)


def old(cluster: FakeCluster) -> None:
    cluster.minor = "29+"


def without_policies(cluster: FakeCluster) -> None:
    cluster.kinds = frozenset()


def without_rights(cluster: FakeCluster) -> None:
    cluster.denied = {"escalate clusterroles", "create namespaces"}


def deleted(cluster: FakeCluster) -> None:
    cluster.objects[NAMESPACES, "nodeside"] = {
        "metadata": {},
        "status": {"phase": "Terminating"},
    }


def restricted(cluster: FakeCluster) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    cluster.objects[NAMESPACES, "nodeside"] = {"metadata": {"labels": labels}}


def without_labels(cluster: FakeCluster) -> None:
    cluster.lists[NODES] = [node("n1")]


def without_leader(cluster: FakeCluster) -> None:
    cluster.objects[LEASES, "nodeside-controller"]["spec"]["holderIdentity"] = ""


def without_image(cluster: FakeCluster) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "not\x1b[2J found"}
    status = {"image": "registry.example.com/x:1", "state": {"waiting": waiting}}
    cluster.lists[PODS] = [{"status": {"containerStatuses": [status]}}]


@pytest.mark.parametrize(
    ("spoil", "name", "words"),
    [
        (old, "Kubernetes", "v1.29"),
        (without_policies, "admission policies", POLICIES),
        (without_rights, "rights", "create namespaces, escalate clusterroles"),
        (restricted, "namespace nodeside", "baseline"),
        (deleted, "namespace nodeside", "is being deleted"),
        (without_labels, "hardware of edu", "0 of 1"),
        (without_leader, "controller", "no controller leads"),
        (without_image, "images", "registry.example.com/x:1 cannot be pulled"),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(
    cluster: FakeCluster, spoil: Callable[[FakeCluster], None], name: str, words: str
) -> None:
    spoil(cluster)

    checked = look(cluster)

    assert not checked.good
    assert words in missing(checked)[name]
    assert set(missing(checked)) <= {name, "labels of hardware"}
    assert "\x1b" not in checked.text()
    [row] = [each for each in json.loads(checked.json())["checks"] if each["name"] == name]
    assert row["state"] == "missing"


def test_a_driver_yaml_without_an_image_is_not_for_a_cluster(cluster: FakeCluster) -> None:
    made = driver()
    wanted = replace(made, spec=replace(made.spec, image=""))

    assert missing(look(cluster, wanted)) == {"image of edu": "spec.image is not set"}


def test_without_a_driver_yaml_the_drivers_of_the_cluster_are_looked_at(
    cluster: FakeCluster,
) -> None:
    cluster.lists[DRIVERS] = [document(), document("chip", toolkit={})]

    checked = check(cast("Api", cluster), "nodeside")

    assert set(missing(checked)) == {f"toolkit of chip for {KERNEL} (2 nodes)"}
    names = [each.name for each in checked.checks]
    assert {"hardware of edu", f"toolkit of edu for {KERNEL} (2 nodes)"} < set(names)
    cluster.lists[DRIVERS] = []
    assert f"toolkit for {KERNEL} (2 nodes)" in missing(check(cast("Api", cluster), "nodeside"))


def test_drivers_that_cannot_be_read_are_told(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.lists[DRIVERS] = [document("chip", modules="none")]
    [mistakes] = [c for c in look(cluster).checks if c.name == "driver chip"]
    assert (mistakes.state, "modules" in mistakes.found) == (CheckState.MISSING, True)

    usual = cluster.list

    def refuse(resource: Resource, *given: Any, **more: Any) -> Page[Any]:
        if resource is DRIVERS:
            raise Forbidden("may not list drivers")
        return usual(resource, *given, **more)

    monkeypatch.setattr(cluster, "list", refuse)
    checked = check(cast("Api", cluster), "nodeside")
    assert checked.good, checked.text()
    [unread] = [each for each in checked.checks if each.name == "drivers"]
    assert unread.state is CheckState.UNKNOWN


def test_a_driver_with_prebuilt_modules_needs_no_toolkit(cluster: FakeCluster) -> None:
    prebuilt = {"sources": [{"oci": "registry.example.com/edu"}]}

    assert look(cluster, driver(toolkit={}, prebuilt=prebuilt)).good


def test_somebody_who_may_not_get_namespaces_sees_the_controller(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = cluster.get

    def refuse(resource: Resource, *given: Any, **more: Any) -> dict[str, Any]:
        if resource is NAMESPACES:
            raise Forbidden("may not get namespaces")
        return usual(resource, *given, **more)

    monkeypatch.setattr(cluster, "get", refuse)

    states = {each.name: each.state for each in look(cluster).checks}
    assert states["controller"] is CheckState.OK


def test_another_driver_for_the_same_devices_is_named_once(cluster: FakeCluster) -> None:
    other = document("other")
    cluster.lists[DRIVERS] = [document(), other, document("later", after=["edu", "other"])]

    for checked in (check(cast("Api", cluster), "nodeside"), look(cluster)):
        [row] = [each for each in checked.checks if each.name.startswith("devices of ")]
        assert row.found == "driver other is for 1234:11e8 too, on n1, n2"
        assert checked.good
    other["spec"]["hardware"] = {"pci": [{"vendor": "1234"}]}
    assert [each for each in look(cluster).checks if each.name.startswith("devices of ")]
    other["spec"]["hardware"] = {"pci": [{"vendor": "1234", "device": "0001"}]}
    assert not [each for each in look(cluster).checks if each.name.startswith("devices of ")]


def test_another_operator_is_named_once_with_its_nodes(cluster: FakeCluster) -> None:
    for each in cluster.lists[NODES]:
        each["metadata"]["labels"]["kmm.node.kubernetes.io/a.edu.ready"] = ""
    cluster.lists[DRIVERS] = [document()]
    checked = look(cluster)
    [found] = [each for each in checked.checks if each.name == "others for edu"]
    assert (found.state, found.found) == (
        CheckState.UNKNOWN,
        (
            "Kernel Module Management (Module a/edu) works on n1, n2 too: "
            "kmm.node.kubernetes.io/a.edu.ready"
        ),
    )
    assert found.remedy == "kubectl delete modules.kmm.sigs.x-k8s.io -n a edu"


def test_another_driver_with_the_same_module_is_named_with_the_nodes_that_both_select(
    cluster: FakeCluster,
) -> None:
    elsewhere = {"nodeSelector": {"rack": "b"}}
    other = document("other", hardware=elsewhere, modules=[{"name": "edu"}])
    cluster.lists[DRIVERS] = [document(), other]

    def rows() -> list[Check]:
        return [each for each in look(cluster).checks if each.name == "modules of edu"]

    assert rows() == []
    other["spec"]["hardware"] = {}
    [row] = rows()
    assert row.state is CheckState.MISSING
    assert row.found == "driver other has edu too, on n1, n2"
    assert row.remedy == (
        "a node gets one of them, and keeps the one that it has; delete one of the two drivers, "
        "or give them different nodes with hardware.nodeSelector"
    )


@pytest.mark.parametrize(
    ("said", "to_do"),
    [
        ("manifest unknown", "push it, or correct its name"),
        ("registry.example.com/x:1: not found", "push it, or correct its name"),
        ("pull access denied, repository does not exist or may require authorization", "--pull-"),
        ("unexpected status: 401 Unauthorized", "--pull-secret"),
        ("dial tcp: lookup registry: no such host", "is it pushed, and may the nodes"),
        ("", "is it pushed, and may the nodes"),
        ("x509: certificate signed by unknown authority", "must trust the registry"),
        ('image "x.example.com/e:1.0-5.14.0-403.el9": not found', "push it, or correct its name"),
        ("registry.example.com/authors/edu:1: not found", "push it, or correct its name"),
        ("no match for platform in manifest: not found", "the architecture of the node"),
    ],
)
def test_what_to_do_about_an_image_depends_on_the_answer_of_its_registry(
    said: str, to_do: str
) -> None:
    assert to_do in image_pulls.remedy(said)


def test_a_kernel_without_a_toolkit_is_named(cluster: FakeCluster) -> None:
    cluster.lists[NODES].append(labelled("n3") | {"status": node("", "6.6.1")["status"]})

    checked = look(cluster, driver(toolkit={}))

    assert [name for name in missing(checked) if name.startswith("toolkit for")] == [
        f"toolkit for {KERNEL} (2 nodes)",
        "toolkit for 6.6.1 (1 node)",
    ]
    assert all(each.remedy for each in checked.checks if each.state is CheckState.MISSING)


def test_nodes_by_other_labels_need_none_of_node_feature_discovery(cluster: FakeCluster) -> None:
    cluster.lists[NODES] = [node("n1", chip="yes"), node("n2")]

    checked = look(cluster, driver(hardware={"nodeSelector": {"chip": "yes"}}))

    assert checked.good, checked.text()


def test_labels_of_a_vendor_alone_are_warned_of(cluster: FakeCluster) -> None:
    key = "feature.node.kubernetes.io/pci-00ff_1234.present"
    cluster.lists[NODES] = [node("n1", **{key: "true"})]

    checked = look(cluster)

    [hardware] = [each for each in checked.checks if each.name == "hardware of edu"]
    assert hardware.state is CheckState.OK
    assert "any device of it counts" in hardware.remedy
    assert not [each.remedy for each in look(FakeCluster()).checks if each.remedy]


def test_one_refusal_does_not_end_the_others(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> dict[str, Any]:
        raise Forbidden("no")

    monkeypatch.setattr(cluster, "create", refuse)

    states = {each.name: each.state for each in look(cluster).checks}

    assert states["rights"] is CheckState.UNKNOWN
    assert states["hardware of edu"] is CheckState.OK


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("jane", "jane-admin --clusterrole=cluster-admin --user=jane"),
        ("jane@example.com", "jane@example.com-admin --clusterrole=cluster-admin --user=jane@exam"),
        (
            "system:serviceaccount:people:jane",
            "jane-admin --clusterrole=cluster-admin --serviceaccount=people:jane",
        ),
    ],
)
def test_whoever_may_look_at_nothing_is_told_once_what_an_administrator_types(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, user: str, command: str
) -> None:
    request = RequestInfo("list", "nodes")
    message = f'nodes is forbidden: User "{user}" cannot list resource "nodes"'

    def refuse(*_: Any, **__: Any) -> Page[Any]:
        raise response_error(request, 403, {"message": message})

    monkeypatch.setattr(cluster, "list", refuse)

    checked = look(cluster)

    [line] = [each for each in checked.checks if each.name == "permissions"]
    assert f"kubectl create clusterrolebinding {command}" in line.remedy
    assert "adds the rules" not in checked.text()
    assert line.state is CheckState.UNKNOWN


def test_a_cluster_of_openshift_is_told_apart(cluster: FakeCluster) -> None:
    desired = {"status": {"desired": {"version": "4.18.1"}}}
    cluster.objects[CLUSTER_VERSIONS, "version"] = desired
    cluster.lists[IMAGE_STREAMS] = []

    assert "OpenShift 4.18.1" in look(cluster).text()


# --- on a real API server ---------------------------------------------------------------------


def without_toolkit(cluster: FakeCluster) -> ClusterCheck:
    cluster.denied = {"create namespaces"}
    return look(cluster, driver(toolkit={}))


def test_checks_are_in_groups_below_a_verdict(cluster: FakeCluster) -> None:
    text = without_toolkit(cluster).text()

    verdict, *groups = text.split("\n\n")
    assert verdict == "2 of 9 need you"
    assert [group.split()[0] for group in groups] == ["CLUSTER", "NODES", "DRIVERS", "NODESIDE"]
    assert "may not create namespaces" in groups[0]
    assert "toolkit for" in groups[2]
    rows = json.loads(without_toolkit(cluster).json())["checks"]
    assert {row["group"] for row in rows} == {"cluster", "nodes", "drivers", "nodeside"}


def test_quiet_shows_what_is_not_ok_and_nothing_if_all_is(cluster: FakeCluster) -> None:
    checked = without_toolkit(cluster)

    text = checked.text(quiet=True)

    assert text.startswith("2 of 9 need you\n\nCLUSTER\nrights")
    assert [part.split()[0] for part in text.split("\n\n")[1:]] == ["CLUSTER", "DRIVERS"]
    rows = json.loads(checked.json(quiet=True))["checks"]
    assert [row["state"] for row in rows] == ["missing", "missing"]
    assert look(FakeCluster()).text(quiet=True) == ""


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        ("OK OK OK", "all 3 are ok"),
        ("OK MISSING", "1 of 2 needs you"),
        ("OK MISSING MISSING UNKNOWN", "2 of 4 need you; 1 is not known"),
        ("OK UNKNOWN UNKNOWN", "nothing of 3 needs you; 2 are not known"),
    ],
)
def test_the_verdict_counts_what_needs_somebody(states: str, verdict: str) -> None:
    checks = (Check("it", CheckState[state], "") for state in states.split())

    assert ClusterCheck(tuple(checks)).verdict == verdict


class Waiting:
    """A clock that only pauses move, and what was said."""

    def __init__(self) -> None:
        self.time = 100.0
        self.said: list[str] = []

    def pause(self, seconds: float) -> None:
        self.time += seconds

    def until_good(self, looks: list[ClusterCheck], seconds: float) -> ClusterCheck:
        return wait_until_good(
            lambda: looks.pop(0) if len(looks) > 1 else looks[0],
            seconds,
            self.said.append,
            clock=lambda: self.time,
            pause=self.pause,
        )


def lacking(*names: str, unread: tuple[str, ...] = ()) -> ClusterCheck:
    checks = (Check(name, CheckState.MISSING, "") for name in names)
    return ClusterCheck((Check("fine", CheckState.OK, ""), *checks), unread)


def test_waiting_ends_with_the_last_missing_thing_and_says_each_change() -> None:
    waiting = Waiting()
    looks = [lacking("nodes", "controller"), *[lacking("controller")] * 2, lacking()]

    assert waiting.until_good(looks, 60).good

    assert waiting.said == [
        "waiting for nodes, controller; 60 s left",
        "waiting for controller; 55 s left",
    ]
    assert waiting.time == 115.0


def test_waiting_ends_at_its_deadline_with_what_is_missing() -> None:
    waiting = Waiting()

    found = waiting.until_good([lacking("controller")], 12)

    assert (found.good, waiting.time) == (False, 112.0)
    assert waiting.said == ["waiting for controller; 12 s left"]


def test_without_time_it_looks_once_and_says_nothing() -> None:
    waiting = Waiting()

    assert not waiting.until_good([lacking("controller"), lacking()], 0).good

    assert (waiting.said, waiting.time) == ([], 100.0)


def test_an_api_server_that_does_not_answer_is_waited_for(cluster: FakeCluster) -> None:
    """What it did not say is unknown, which alone is no failure of a single look."""
    answer = cluster.get_version

    def refuse() -> dict[str, Any]:
        cluster.get_version = answer  # type: ignore[method-assign]
        raise response_error(RequestInfo("get", "version"), 503, {})

    cluster.get_version = refuse  # type: ignore[method-assign]
    first = look(cluster)
    waiting = Waiting()

    found = waiting.until_good([first, look(cluster)], 60)

    assert first.good
    assert waiting.said == ["waiting for Kubernetes; 60 s left"]
    assert (found.unread, found.verdict) == ((), "all 9 are ok")


def test_wait_takes_a_number_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[float] = []

    def wait(_look: object, seconds: float, _say: object) -> ClusterCheck:
        given.append(seconds)
        return lacking("controller")

    monkeypatch.setattr("cluster.cli.check.wait_until_good", wait)
    with ScriptedServer() as server:
        place = tmp_path / "kubeconfig"
        place.write_text(json.dumps(kubeconfig(server.url, "secret")))
        for words in ((), ("--wait",), ("--wait", "20"), ("--wait", "--quiet")):
            done = command("check", *words, "--kubeconfig", place)
            assert done.code == ExitCode.NOT_READY
            assert done.output.startswith("1 of 2 needs you\n")

    assert given == [0, 300, 20, 300]


@pytest.mark.cluster
def test_a_real_cluster_is_looked_at_with_the_rights_of_an_administrator(
    api: Api, installed: InstallSettings, nodes: Nodes
) -> None:
    nodes.create("n1", kernel=KERNEL)
    nodes.label("n1", {"feature.node.kubernetes.io/pci-1234_11e8.present": "true"})

    states = {each.name: each.state for each in check(api, "nodeside", driver()).checks}

    for name in ("Kubernetes", "admission policies", "rights", "namespace nodeside"):
        assert states[name] is CheckState.OK
    assert states["hardware of edu"] is CheckState.OK
    assert states[f"toolkit for {KERNEL} (1 node)"] is CheckState.OK


@pytest.mark.cluster
def test_somebody_without_rights_is_told_what_is_not_seen(
    control_plane: ControlPlane, installed: InstallSettings
) -> None:
    token = control_plane.pod_token("default", "default", None)
    with closing(connect(control_plane.kubeconfig_of(token))) as api:
        checked = check(api, "nodeside", driver())

    assert "rights" in missing(checked)
    states = {each.name: each.state for each in checked.checks}
    assert states["Kubernetes"] is CheckState.OK
    assert states["nodes"] is CheckState.UNKNOWN
