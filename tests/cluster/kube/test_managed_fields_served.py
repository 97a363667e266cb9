"""What others add to a DaemonSet, on a real API server: seen, named, and gone after one apply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.kube.managed_fields import Overwrite
from cluster.kube.resources import DAEMON_SETS
from cluster.model.parse import daemonset_from
from cluster.plan.objects.daemonset import daemonset, differs
from tests.cluster.fakes.daemonsets import CASES
from tests.controlplane.controlplane import APPLY_PATCH, MERGE_PATCH, ControlPlane

pytestmark = pytest.mark.cluster

STRATEGIC = "application/strategic-merge-patch+json"
DRIVER = "spec.template.spec.containers[driver]"


@pytest.fixture
def document(control_plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """A DaemonSet that we applied."""
    document = daemonset(CASES["kubernetes"])
    document["metadata"]["namespace"] = "default"
    del document["metadata"]["ownerReferences"]  # there is no such Driver to own it
    apply(control_plane, document)
    yield document
    control_plane.do("DELETE", path(document))


def path(document: dict[str, Any]) -> str:
    return DAEMON_SETS.path(document["metadata"]["name"], namespace="default")


def apply(control_plane: ControlPlane, document: dict[str, Any]) -> dict[str, Any]:
    asked = f"{path(document)}?fieldManager=nodeside-cluster&force=true&fieldValidation=Strict"
    return dict(control_plane.do("PATCH", asked, document, content_type=APPLY_PATCH))


def until_ours(control_plane: ControlPlane, document: dict[str, Any]) -> None:
    """As executor.py does it; the DaemonSet controller, which counts, may be in between."""

    def is_ours() -> bool:
        found = differs(document, daemonset_from(control_plane.do("GET", path(document))))
        if found is None:
            return True
        if found.regains is not None:
            asked = f"{path(document)}?fieldManager=nodeside-cluster"
            control_plane.request("PATCH", asked, found.regains, content_type=MERGE_PATCH)
        apply(control_plane, document)
        return False

    control_plane.wait_for(is_ours, "the DaemonSet to be ours")


def differing(control_plane: ControlPlane, document: dict[str, Any]) -> Overwrite:
    found = differs(document, daemonset_from(control_plane.do("GET", path(document))))
    assert found is not None
    return found


def edit(control_plane: ControlPlane, document: dict[str, Any], pod: dict[str, Any]) -> None:
    """As `kubectl edit` does it."""
    asked = f"{path(document)}?fieldManager=kubectl-edit"
    patch = {"spec": {"template": {"spec": pod}}}
    control_plane.do("PATCH", asked, patch, content_type=STRATEGIC)


EDITS: dict[str, tuple[dict[str, Any], str]] = {
    "an environment variable": (
        {"containers": [{"name": "driver", "env": [{"name": "DEBUG", "value": "1"}]}]},
        f"kubectl-edit set {DRIVER}.env[DEBUG]",
    ),
    "a container": (
        {"containers": [{"name": "debug", "image": "busybox"}]},
        "kubectl-edit set spec.template.spec.containers[debug]",
    ),
    "a volume": (
        {"volumes": [{"name": "more", "emptyDir": {}}]},
        "kubectl-edit set spec.template.spec.volumes[more]",
    ),
    "the host's network": (
        {"hostNetwork": True},
        "kubectl-edit set spec.template.spec.hostNetwork",
    ),
    "a label that nodes must have": (
        {"nodeSelector": {"disk": "ssd"}},
        "kubectl-edit set spec.template.spec.nodeSelector",
    ),
    "a toleration": (
        {"tolerations": [{"operator": "Exists"}, {"key": "more", "operator": "Exists"}]},
        "kubectl-edit set spec.template.spec.tolerations",
    ),
    "another default": (
        {"containers": [{"name": "driver", "terminationMessagePolicy": "FallbackToLogsOnError"}]},
        f"kubectl-edit set {DRIVER}.terminationMessagePolicy",
    ),
    "another value": (
        {"containers": [{"name": "driver", "image": "evil:1"}]},
        f"kubectl-edit set {DRIVER}.image",
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_what_somebody_adds_is_seen_named_and_gone_after_one_apply(
    control_plane: ControlPlane, document: dict[str, Any], what: str
) -> None:
    before = control_plane.do("GET", path(document))["spec"]
    pod, words = EDITS[what]
    edit(control_plane, document, pod)

    assert differing(control_plane, document).edit == words
    until_ours(control_plane, document)

    after = control_plane.do("GET", path(document))
    assert after["spec"] == before
    assert differs(document, daemonset_from(after)) is None


def test_an_apply_that_was_cut_off_before_its_second_request_is_finished(
    control_plane: ControlPlane, document: dict[str, Any]
) -> None:
    edit(control_plane, document, {"hostNetwork": True})

    def cut_off() -> bool:
        patch = differing(control_plane, document).regains
        answer = control_plane.request("PATCH", path(document), patch, content_type=MERGE_PATCH)
        return answer.status == 200

    control_plane.wait_for(cut_off, "the first request")

    assert differing(control_plane, document).regains is None, "nothing of others is left"
    until_ours(control_plane, document)


def test_restarting_the_pods_is_nobodys_edit(
    control_plane: ControlPlane, document: dict[str, Any]
) -> None:
    name = document["metadata"]["name"]
    control_plane.kubectl("rollout", "restart", "daemonset", name, "-n", "default")

    assert differs(document, daemonset_from(control_plane.do("GET", path(document)))) is None
