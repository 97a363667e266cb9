"""Each wrong input ends in one named condition or one sentence, and heals when its cause is gone.

The table is what a person reads. An API server that is gone is in test_outages.py; what is refused
before the controller ever sees it is at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

from nodeside.errors import ExitCode
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import DRIVERS, EDU, OLD, Scene
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.imagestreams import aggregated_away
from tests.controlplane.stages import PUSHED, UNPUSHED

pytestmark = pytest.mark.cluster

_FORBIDDEN = 'is forbidden: User "system:serviceaccount:nodeside:nodeside-controller" cannot'


@contextmanager
def no_toolkit(scene: Scene) -> Iterator[None]:
    """The image stream has no tag for the node's OS version."""
    scene.toolkits()
    yield
    scene.toolkits(OLD)


@contextmanager
def no_image_streams(scene: Scene) -> Iterator[None]:
    """The server behind the API server that has the image streams is down, from the start."""
    with aggregated_away(scene.control_plane):
        yield


@contextmanager
def a_rival(scene: Scene) -> Iterator[None]:
    """An older Driver has a module of the same name."""
    scene.driver(name="first")
    # The API server's clock has seconds; who came first must not be a matter of the name.
    scene.control_plane.wait_for(lambda: scene.age("first") >= 1, "the second one to be younger")
    yield
    scene.control_plane.kubectl("delete", "driver", "first", "--wait=false")


@contextmanager
def restricted_pods(scene: Scene) -> Iterator[None]:
    """The namespace admits no privileged pod."""
    _enforce(scene, "restricted")
    try:
        yield
    finally:
        _enforce(scene, "privileged")


@contextmanager
def image_not_pushed(scene: Scene) -> Iterator[None]:
    """No registry has the tag that the Driver names; there are more nodes than are named."""
    for name in ("n1", "n2", "n3"):
        scene.node(name)
    yield
    note = {"metadata": {"annotations": {PUSHED: "true"}}}
    for pod in scene.pods():
        path = f"/api/v1/namespaces/nodeside/pods/{pod['metadata']['name']}"
        scene.control_plane.do("PATCH", path, note, content_type=MERGE_PATCH)


def _enforce(scene: Scene, level: str) -> None:
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
    path = "/api/v1/namespaces/nodeside"
    scene.control_plane.do("PATCH", path, labels, content_type=MERGE_PATCH)


def no_rule(verb: str, plural: str) -> Callable[[Scene], AbstractContextManager[None]]:
    """The controller's account may not do this."""
    return lambda scene: scene.rule_missing(plural, verb)


@dataclass(frozen=True)
class Wrong:
    """What is wrong, and what is then read: the condition, its status, its reason, its message.

    Without the cause, this version of the Driver works on so many nodes.
    """

    cause: Callable[[Scene], AbstractContextManager[None]]
    condition: str
    status: str
    reason: str
    begins: str
    ends: str
    version: str = "1.0.0"
    nodes: int = 1
    canary: int = 1

    def __str__(self) -> str:
        return f"{self.reason}: {self.begins}"


TABLE = (
    Wrong(no_toolkit, "Degraded", "True", "ToolkitMissing",
          f"kernel {OLD[0]} on n0: no toolkit image: ", "tags seen: 410.84.202207140725-0"),
    Wrong(a_rival, "Degraded", "True", "ModuleConflict",
          "driver first came first and has a module of the same name: ", "not assigned to n0"),
    Wrong(no_image_streams, "Degraded", "True", "ToolkitMissing",
          f"kernel {OLD[0]} on n0: no toolkit image: the image streams are not known: ",
          "wait until they are, or name an image in spec.toolkit.images"),
    Wrong(image_not_pushed, "Degraded", "True", "NodesFailed",
          "n0, n1, n2 and 1 more node: its pod cannot start: provide: ImagePullBackOff: ",
          f'image "registry.example.com/drivers/edu:{UNPUSHED}"', UNPUSHED, 4, canary=0),
    Wrong(restricted_pods, "Ready", "False", "NodesBusy",
          "works on 0 of 1 node; ", "starting: n0"),
    Wrong(no_rule("patch", "nodes"), "Degraded", "True", "Forbidden",
          "cannot label node n0 nodeside.io/edu.assigned=",
          f'{_FORBIDDEN} patch resource "nodes" in API group "" at the cluster scope (see what is '
          "missing: kubectl auth can-i patch nodes; `nodeside-cluster install` adds the rules)"),
    Wrong(no_rule("create", "daemonsets"), "Degraded", "True", "Forbidden",
          "cannot apply DaemonSet edu-",
          f'{_FORBIDDEN} create resource "daemonsets" in API group "apps" in the namespace '
          '"nodeside" (see what is missing: kubectl auth can-i create daemonsets.apps -n nodeside; '
          "`nodeside-cluster install` adds the rules)"),
    Wrong(no_rule("list", "configmaps"), "Ready", "Unknown", "ConfigMapsUnreadable",
          "cannot watch ConfigMap objects: no permission to list configmaps in ",
          'configmaps is forbidden: User "system:serviceaccount:nodeside:nodeside-controller" '
          'cannot list resource "configmaps" in API group "" in the namespace "nodeside" (see what '
          "is missing: kubectl auth can-i list configmaps -n nodeside; `nodeside-cluster install` "
          "adds the rules)"),
    Wrong(no_rule("watch", "nodes"), "Available", "Unknown", "NodesUnreadable",
          "cannot watch Node objects: no permission to watch nodes: ",
          'nodes is forbidden: User "system:serviceaccount:nodeside:nodeside-controller" cannot '
          'watch resource "nodes" in API group "" at the cluster scope (see what is missing: '
          "kubectl auth can-i watch nodes; `nodeside-cluster install` adds the rules)"),
)  # fmt: skip


@pytest.mark.parametrize("wrong", TABLE, ids=str)
def test_what_is_wrong_is_said_in_one_condition_and_heals_by_itself(
    wrong: Wrong, scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    with wrong.cause(scene):
        replicas.start()
        scene.driver(wrong.version, canary=wrong.canary)

        scene.until_reason(wrong.condition, wrong.reason)
        message = scene.until_said(wrong.condition, wrong.begins)
        assert scene.condition(wrong.condition)["status"] == wrong.status
        assert message.startswith(wrong.begins)
        assert wrong.ends in message
        assert scene.column("STATUS") == wrong.reason, "what kubectl get drivers says"
        status = scene.cli("status")
        assert status.exit_code == ExitCode.NOT_READY
        assert wrong.begins.strip() in " ".join(status.output.split())

    scene.until_ready(wrong.nodes)
    assert scene.condition("Degraded")["reason"] == "AsExpected"
    assert len(scene.pods("n0")) == 1


def test_forbidden_status_update_emits_event(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    """No condition can say it; what `kubectl describe driver` shows besides are Events."""
    scene.toolkits(OLD)
    scene.node("n0")
    with scene.rule_missing("drivers/status", "patch"):
        replicas.start()
        scene.driver()
        uid = scene.control_plane.do("GET", f"{DRIVERS}/edu")["metadata"]["uid"]

        def said() -> list[str]:
            events = scene.events("Forbidden")
            return [e["note"] for e in events if e["regarding"].get("uid") == uid]

        scene.control_plane.wait_for(said, "an Event")
        assert scene.status() == {}
        assert said()[0].startswith("cannot set the status of driver edu: ")
        assert (
            f'{_FORBIDDEN} patch resource "drivers/status" in API group "nodeside.io" at the '
            "cluster scope (see what is missing: kubectl auth can-i patch "
        ) in said()[0]

    scene.until_ready(1)


def test_who_may_not_renew_the_lease_leads_no_longer_and_its_log_says_why(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    with scene.rule_missing("leases", "update"):
        replica = replicas.start(lead=False, lease=2)
        scene.control_plane.wait_for(
            lambda: replica.said("cannot campaign: no permission to update leases"), "the log"
        )
        assert replica.said("no longer leading")
        scene.driver()

    scene.until_ready(1)
    assert replica.child.poll() is None


@pytest.mark.parametrize(
    ("right", "typo", "sentence"),
    [
        ("modules:", "modulse:", 'strict decoding error: unknown field "spec.modulse"'),
        (
            'vendor: "1234"',
            'vendor: "12345"',
            'pci[0].vendor: Invalid value: "12345"',
        ),
        ("    - name: edu", "    - name: e/d", 'spec.modules[0].name: Invalid value: "e/d"'),
        ("  name: edu", f"  name: {'e' * 41}", "metadata.name: expected a DNS label: "),
    ],
)
def test_a_typo_is_refused_in_one_sentence(
    right: str, typo: str, sentence: str, scene: Scene
) -> None:
    text = EDU.read_text()
    assert right in text

    refused = scene.control_plane.kubectl(
        "apply", "-f", "-", input=text.replace(right, typo, 1), check=False
    )

    assert refused.exit_code == 1
    assert sentence in refused.errors
    assert len(refused.errors.strip().splitlines()) == 1
    assert scene.items(DRIVERS) == []
