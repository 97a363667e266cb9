"""What others change of what is ours: undone, named, and never a fight without end.

Judged by a watch of the DaemonSets and by the API server's audit log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.kube.resources import DAEMON_SETS
from cluster.model.names import NAMESPACE
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import OLD, Scene
from tests.cluster.e2e.staged import until_staged
from tests.controlplane.api_server import APPLY_PATCH
from tests.controlplane.audit import Audit

pytestmark = pytest.mark.cluster

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
ONE_STAGE = [{"name": "first", "manifests": "one"}]


def events(scene: Scene, reason: str) -> list[str]:
    found = scene.items("/apis/events.k8s.io/v1/namespaces/default/events")
    return [event["note"] for event in found if event["reason"] == reason]


def adding(container: str) -> str:
    """All that a person may add with one `kubectl patch`."""
    pod = {
        "hostNetwork": True,
        "nodeSelector": {"disk": "ssd"},
        "volumes": [{"name": "more", "emptyDir": {}}],
        "containers": [
            {"name": container, "env": [{"name": "DEBUG", "value": "1"}]},
            {"name": "debug", "image": "busybox"},
        ],
    }
    return json.dumps({"spec": {"template": {"spec": pod}}})


def daemonset(scene: Scene, name: str) -> Mapping[str, Any]:
    return scene.control_plane.do("GET", DAEMON_SETS.path(name, namespace=NAMESPACE))


def until_undone(scene: Scene, name: str, container: str) -> None:
    """An edit of a DaemonSet, and its end: what it was is what it is."""
    before = daemonset(scene, name)
    edit = ("patch", "daemonset", name, "-n", NAMESPACE, "--type=strategic", "-p")
    scene.control_plane.kubectl(*edit, adding(container))
    scene.control_plane.wait_for(
        lambda: daemonset(scene, name)["spec"] == before["spec"], f"{name} to be as before"
    )
    scene.control_plane.wait_for(
        lambda: any(f"DaemonSet {name} " in note for note in events(scene, "EditUndone")),
        "an Event that tells it",
    )
    notes = [note for note in events(scene, "EditUndone") if f"DaemonSet {name} " in note]
    assert "is reverted: kubectl-patch set spec.template.spec." in notes[0]


def patches(scene: Scene, since: int, name: str) -> int:
    """How often the controller wrote a DaemonSet."""
    writes = Audit(scene.control_plane.place.directory).writes(since)
    return sum(w.kind == "patch daemonsets" and w.name == name for w in writes)


def test_what_somebody_adds_to_a_daemonset_is_gone_and_stays_gone(
    staged: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene = staged
    scene.node("n0")
    replicas.start()
    scene.driver()
    scene.change({"stages": ONE_STAGE})
    until_staged(scene, 1)
    [ours] = (each["metadata"]["name"] for each in scene.daemonsets())
    since = Audit(scene.control_plane.place.directory).mark()

    with scene.watching() as watching:
        for name, container in ((ours, "driver"), ("plugin", "main")):
            until_undone(scene, name, container)
        scene.node("n1")
        until_staged(scene, 2)

    for name in (ours, "plugin"):
        seen = [e.object["metadata"]["generation"] for e in watching.events if e.name == name]
        assert max(seen) - min(seen) == 2, "once by whoever edited it, once by us"
        assert patches(scene, since, name) <= 10, "three requests, and some that came too late"
    assert scene.condition("Ready")["status"] == "True"


@contextmanager
def mutated(scene: Scene) -> Iterator[None]:
    """An admission policy of this cluster adds to every DaemonSet, and changes one field of it."""
    container = "object.spec.template.spec.containers[0]"
    expression = (
        '[JSONPatch{op: "add", path: "/spec/template/spec/containers/0/env/-", '
        'value: Object.spec.template.spec.containers.env{name: "MESH", value: "on"}}, '
        'JSONPatch{op: "replace", path: "/spec/template/spec/priorityClassName", '
        'value: "system-cluster-critical"}]'
    )
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "mesh"},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["apps"],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["daemonsets"],
                    }
                ]
            },
            "matchConditions": [
                {"name": "once", "expression": f"!{container}.env.exists(e, e.name == 'MESH')"}
            ],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "mesh"},
        "spec": {"policyName": "mesh"},
    }
    plane = scene.control_plane
    paths = {
        f"{ADMISSION}/mutatingadmissionpolicies/mesh": policy,
        f"{ADMISSION}/mutatingadmissionpolicybindings/mesh": binding,
    }
    for path, document in paths.items():
        asked = f"{path}?fieldManager=tests&force=true"
        plane.do("PATCH", asked, document, content_type=APPLY_PATCH)
    try:
        plane.wait_for(lambda: is_mutated(scene), "the policy to be in force")
        yield
    finally:
        for path in paths:
            plane.do("DELETE", path)
        plane.wait_for(lambda: not is_mutated(scene), "the policy to be forgotten")


def is_mutated(scene: Scene) -> bool:
    """Whether a DaemonSet that is made now, as a trial, comes back with more than it has."""
    labels = {"app": "probe"}
    container = {"name": "main", "image": "probe", "env": [{"name": "A", "value": "1"}]}
    probe = {
        "metadata": {"name": "probe"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    path = f"{DAEMON_SETS.path(namespace=NAMESPACE)}?dryRun=All"
    made = scene.control_plane.do("POST", path, probe)
    return len(made["spec"]["template"]["spec"]["containers"][0]["env"]) > 1


def test_a_webhook_that_changes_every_daemonset_is_told_and_not_fought(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD)
    scene.node("n0")
    with mutated(scene):
        replicas.start()
        since = Audit(scene.control_plane.place.directory).mark()
        scene.driver()
        scene.until_ready(1)
        [name] = (each["metadata"]["name"] for each in scene.daemonsets())
        scene.control_plane.wait_for(
            lambda: any(f"DaemonSet {name} " in n for n in events(scene, "AppliedOtherwise")),
            "an Event that tells it",
        )
        for node in ("n1", "n2"):
            scene.node(node)
        scene.until_ready(3)

    assert patches(scene, since, name) <= 3
    assert daemonset(scene, name)["metadata"]["generation"] <= 2
    [note] = [n for n in events(scene, "AppliedOtherwise") if f"DaemonSet {name} " in n]
    assert "an admission webhook of this cluster changes it; it is left as it is" in note
