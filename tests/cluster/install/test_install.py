"""Installing and removing, on a real API server: by kubectl and by our own command's code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.install.install import InstalledElsewhere, install
from cluster.install.manifests import InstallSettings, all_manifests, manifests_of_any, to_yaml
from cluster.install.uninstall import uninstall
from cluster.kube.client import Api
from cluster.kube.errors import NotFound
from cluster.kube.resources import DRIVERS, resource_of
from nodeside.errors import DeadlinePassed
from nodeside.system.process import Completed
from tests.cluster.fakes.installed import install_all
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.constraints import constraints_served
from tests.controlplane.controlplane import ControlPlane
from tests.spec.documents import document

pytestmark = pytest.mark.cluster

IMAGE = "registry.example.com/nodeside-cluster:1.0"


@pytest.fixture
def again(control_plane: ControlPlane, installed: InstallSettings) -> Iterator[None]:
    """What the tests of the session count on is there again afterwards."""
    yield
    install_all(control_plane, installed)


def driver(name: str) -> dict[str, Any]:
    return document(image=IMAGE) | {"metadata": {"name": name}}


def warnings(done: Completed) -> list[str]:
    """What the API server warns of; not that the tests had applied it in another way before."""
    lines = [line for line in done.errors.splitlines() if line.startswith("Warning")]
    return [line for line in lines if "last-applied-configuration" not in line]


def test_kubectl_applies_what_is_printed(
    control_plane: ControlPlane, installed: InstallSettings
) -> None:
    text = to_yaml(all_manifests(InstallSettings(image=IMAGE)))
    tried = control_plane.kubectl("apply", "--dry-run=server", "-f", "-", input=text)
    assert "deployment.apps/nodeside-controller created (server dry run)" in tried.output
    assert warnings(tried) == []
    applied = control_plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", input=text
    )
    assert "deployment.apps/nodeside-controller serverside-applied" in applied.output
    same = control_plane.kubectl(
        "diff", "--server-side", "--force-conflicts", "-f", "-", input=text
    )
    assert same.output == ""
    control_plane.kubectl("delete", "deployment", "-n", "nodeside", "nodeside-controller")


def test_the_manifests_for_openshift_are_good_except_for_its_own_kind(
    control_plane: ControlPlane, installed: InstallSettings
) -> None:
    documents = all_manifests(InstallSettings(image=IMAGE, openshift=True))
    known = [d for d in documents if d["kind"] != "SecurityContextConstraints"]
    assert len(known) == len(documents) - 2  # for driver pods, and for device agents
    tried = control_plane.kubectl("apply", "--dry-run=server", "-f", "-", input=to_yaml(known))
    assert warnings(tried) == []


def test_the_controller_would_be_admitted_where_only_restricted_pods_are(
    control_plane: ControlPlane,
) -> None:
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    metadata = {"name": "restricted", "labels": labels}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    control_plane.do("POST", "/api/v1/namespaces", namespace)
    found = all_manifests(InstallSettings(image=IMAGE, namespace="restricted"))
    deployment = [document for document in found if document["kind"] == "Deployment"]
    tried = control_plane.kubectl("apply", "--dry-run=server", "-f", "-", input=to_yaml(deployment))
    control_plane.do("DELETE", "/api/v1/namespaces/restricted")
    assert tried.output == "deployment.apps/nodeside-controller created (server dry run)\n"
    assert tried.errors == ""


def test_install_makes_everything_and_may_be_repeated(api: Api, again: None) -> None:
    documents = all_manifests(InstallSettings(image=IMAGE))
    list(install(api, documents))
    said = list(install(api, documents))
    assert said[-1] == "PodDisruptionBudget nodeside-controller unchanged"
    assert [line.rpartition(" ")[2] for line in said] == ["unchanged"] * len(documents)
    for wanted in documents:
        metadata = wanted["metadata"]
        api.get(resource_of(wanted), metadata["name"], namespace=metadata.get("namespace", ""))


def test_uninstall_leaves_nothing_however_it_was_installed(
    control_plane: ControlPlane, api: Api, again: None
) -> None:
    chosen = InstallSettings(namespace="to-be-removed", image=IMAGE, openshift=True)
    with constraints_served(control_plane):
        install_all(control_plane, chosen)
        control_plane.do("POST", DRIVERS.path(), driver("goes"))
        said = list(uninstall(api, manifests_of_any("to-be-removed")))
        assert said[0] == "driver goes: to be deleted; its modules are unloaded first"
        assert said[1] == "driver goes deleted"
        assert "SecurityContextConstraints nodeside-driver deleted" in said
        metrics = "ServiceMonitor nodeside-controller-metrics was not there"
        assert metrics in said, "nor is its kind"
        path = "/api/v1/namespaces/to-be-removed"
        control_plane.wait_for(lambda: control_plane.request("GET", path).status == 404, "its end")
        for wanted in all_manifests(chosen):
            metadata = wanted["metadata"]
            namespace = metadata.get("namespace", "")
            with pytest.raises(NotFound):
                api.get(resource_of(wanted), metadata["name"], namespace=namespace)


@pytest.mark.parametrize("do", [install, uninstall])
def test_a_second_installation_takes_nothing_from_the_one_that_is_there(
    control_plane: ControlPlane, installed: InstallSettings, api: Api, do: Any
) -> None:
    """Its cluster-wide bindings would take the rights of the controller that runs."""
    documents = all_manifests(InstallSettings(namespace="elsewhere", image=IMAGE))
    with pytest.raises(InstalledElsewhere, match="is installed in namespace nodeside") as caught:
        list(do(api, documents))
    assert "--namespace nodeside" in caught.value.hint
    assert control_plane.request("GET", "/api/v1/namespaces/elsewhere").status == 404
    binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/nodeside-controller"
    assert control_plane.do("GET", binding)["subjects"][0]["namespace"] == "nodeside"


def test_uninstall_does_not_take_the_controller_from_a_driver_that_needs_it(
    control_plane: ControlPlane,
    installed: InstallSettings,
    api: Api,
) -> None:
    """A Driver with a finalizer and no controller would be there for ever."""
    value = driver("held")
    value["metadata"]["finalizers"] = ["nodeside.io/driver"]
    control_plane.do("POST", DRIVERS.path(), value)
    with pytest.raises(DeadlinePassed, match=r"all Drivers to be gone: held$") as caught:
        list(uninstall(api, all_manifests(installed), deadline=0.0))
    assert "is a controller running that cleans up?" in caught.value.hint
    free = {"metadata": {"finalizers": None}}
    control_plane.do("PATCH", DRIVERS.path("held"), free, content_type=MERGE_PATCH)
    account = "/api/v1/namespaces/nodeside/serviceaccounts/nodeside-controller"
    assert control_plane.request("GET", account).status == 200
