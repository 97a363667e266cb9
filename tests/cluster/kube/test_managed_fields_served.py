"""What others add to a DaemonSet, on a real API server: seen, named, and gone after one apply."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from typing import Any

import pytest

from cluster.driver.daemonset import daemonset_document, object_to_overwrite
from cluster.kube.client import connect
from cluster.kube.errors import ApiError
from cluster.kube.managed_fields import ExistingObject, replacement_patch
from cluster.kube.resources import DAEMON_SETS
from cluster.model.names import APPLIED_NOTE
from cluster.model.parse import daemonset_from
from cluster.model.snapshot import DaemonSetObject
from cluster.reconcile.node_labels import is_failed_test
from tests.cluster.fakes.daemonsets import CASES
from tests.controlplane.api_server import APPLY_PATCH
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
DRIVER = "spec.template.spec.containers[driver]"


@pytest.fixture
def document(control_plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """A DaemonSet that we applied."""
    document = daemonset_document(CASES["kubernetes"])
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


def replace_spec(control_plane: ControlPlane, document: dict[str, Any]) -> None:
    """The first request of executor.py that changes something."""
    asked = f"{path(document)}?fieldManager=nodeside-cluster"
    control_plane.do("PATCH", asked, replacement_patch(document), content_type=JSON_PATCH)


def overwrite(control_plane: ControlPlane, document: dict[str, Any]) -> None:
    """As executor.py does it."""
    if differing(control_plane, document).co_owned:
        replace_spec(control_plane, document)
    apply(control_plane, document)


def served(control_plane: ControlPlane, document: dict[str, Any]) -> DaemonSetObject:
    return daemonset_from(control_plane.do("GET", path(document)))


def differing(control_plane: ControlPlane, document: dict[str, Any]) -> ExistingObject:
    found = object_to_overwrite(document, served(control_plane, document))
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
    overwrite(control_plane, document)

    after = control_plane.do("GET", path(document))
    assert after["spec"] == before
    assert object_to_overwrite(document, daemonset_from(after)) is None


def test_an_apply_that_was_cut_off_before_its_second_request_is_finished(
    control_plane: ControlPlane, document: dict[str, Any]
) -> None:
    wanted = deepcopy(document)
    wanted["spec"]["revisionHistoryLimit"] = 2
    wanted["metadata"]["annotations"][APPLIED_NOTE] = "other"
    edit(control_plane, document, {"hostNetwork": True})

    replace_spec(control_plane, wanted)

    assert differing(control_plane, wanted).edit == "", "nothing of others is left"
    overwrite(control_plane, wanted)
    assert object_to_overwrite(wanted, served(control_plane, wanted)) is None


def test_a_field_that_was_edited_and_put_back_goes_once_we_do_not_set_it_any_more(
    control_plane: ControlPlane, document: dict[str, Any]
) -> None:
    edit(control_plane, document, {"priorityClassName": "system-cluster-critical"})
    overwrite(control_plane, document)
    del document["spec"]["template"]["spec"]["priorityClassName"]
    document["metadata"]["annotations"][APPLIED_NOTE] = "other"

    overwrite(control_plane, document)

    after = control_plane.do("GET", path(document))
    assert "priorityClassName" not in after["spec"]["template"]["spec"]
    assert object_to_overwrite(document, daemonset_from(after)) is None


def test_a_change_of_ours_alone_is_one_apply(
    control_plane: ControlPlane, document: dict[str, Any]
) -> None:
    document["spec"]["revisionHistoryLimit"] = 2

    found = differing(control_plane, document)
    assert not found.co_owned
    apply(control_plane, document)
    assert object_to_overwrite(document, served(control_plane, document)) is None


def test_labels_and_annotations_that_others_set_stay(
    control_plane: ControlPlane, document: dict[str, Any]
) -> None:
    name = document["metadata"]["name"]
    for verb in ("label", "annotate"):
        control_plane.kubectl(verb, "daemonset", name, "-n", "default", "example.com/team=a")
    edit(control_plane, document, {"hostNetwork": True})

    overwrite(control_plane, document)

    metadata = control_plane.do("GET", path(document))["metadata"]
    assert metadata["labels"]["example.com/team"] == "a"
    assert metadata["annotations"]["example.com/team"] == "a"


def test_restarting_the_pods_is_nobodys_edit(
    control_plane: ControlPlane, document: dict[str, Any]
) -> None:
    name = document["metadata"]["name"]
    control_plane.kubectl("rollout", "restart", "daemonset", name, "-n", "default")

    assert object_to_overwrite(document, served(control_plane, document)) is None


def test_a_daemonset_made_anew_is_not_replaced(
    control_plane: ControlPlane, document: dict[str, Any]
) -> None:
    found = served(control_plane, document)
    assert found.meta.uid == found.uid
    where = {"namespace": "default", "deadline": 10.0}

    with closing(connect(control_plane.kubeconfig)) as api:
        api.json_patch(DAEMON_SETS, found.name, replacement_patch(document, found.uid), **where)
        with pytest.raises(ApiError) as caught:
            api.json_patch(DAEMON_SETS, found.name, replacement_patch(document, "another"), **where)

    assert is_failed_test(caught.value)
