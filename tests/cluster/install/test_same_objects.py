"""`install`, kustomize and Helm give the same objects, with the files as they are in the tree.

The real kustomize, that of kubectl, and the real Helm; no API server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.install.helm import chart_values
from cluster.install.kustomize import KUSTOMIZATION
from cluster.install.manifests import IMAGE, InstallSettings, all_manifests
from cluster.model.names import CONTROLLER, NAMESPACE
from cluster.model.snapshot import KUBELET_ROOT
from nodeside.system import process
from tests import TOP
from tests.cluster.fakes.same import different, without_release
from tests.controlplane.binaries import Say, binaries
from tests.helm.program import Helm, helm_program
from tests.patience import patience

pytestmark = pytest.mark.cluster

NAME, TAG = "registry.example.com/nodeside-cluster", "1.0"
PLAIN = InstallSettings(image=f"{NAME}:{TAG}")
_SECONDS = patience(60.0)


@dataclass(frozen=True)
class Case:
    """One installation, by its options and by an overlay on the directories of deploy/."""

    settings: InstallSettings
    resources: str = "base"
    components: tuple[str, ...] = ()


CASES = {
    "plain": Case(PLAIN),
    "openshift": Case(replace(PLAIN, openshift=True), "openshift"),
    "service monitor": Case(replace(PLAIN, service_monitor=True), components=("service-monitor",)),
    "another namespace": Case(
        replace(PLAIN, namespace="drivers", service_monitor=True), components=("service-monitor",)
    ),
    "another namespace on openshift": Case(
        replace(PLAIN, namespace="drivers", openshift=True), "openshift"
    ),
    "three replicas": Case(replace(PLAIN, replicas=3)),
    "another kubelet": Case(replace(PLAIN, kubelet_root="/var/lib/k0s/kubelet")),
    "devices": Case(replace(PLAIN, agent_image="registry.example.com/nodeside-agent:1.0")),
}


def overlay(place: Path, case: Case) -> Path:
    """An overlay as docs/cluster.md has it."""
    wanted, deploy = case.settings, Path(os.path.relpath(TOP / "deploy", place))
    document: dict[str, Any] = {
        "resources": [str(deploy / case.resources)],
        "components": [str(deploy / name) for name in case.components],
        "images": [{"name": IMAGE, "newName": NAME, "newTag": TAG}],
        "replicas": [{"name": CONTROLLER, "count": wanted.replicas}],
    }
    if wanted.namespace != NAMESPACE:
        document["namespace"] = wanted.namespace
        document["transformers"] = [str(deploy / "another-namespace")]
    options = [f"--agent-image={wanted.agent_image}"] if wanted.agent_image else []
    if wanted.kubelet_root != KUBELET_ROOT:
        options.append(f"--kubelet-root={wanted.kubelet_root}")
    for option in options:
        add = {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": option}
        target = {"kind": "Deployment", "name": CONTROLLER}
        document["patches"] = [{"target": target, "patch": json.dumps([add])}]
    (place / KUSTOMIZATION).write_text(yaml.safe_dump(document))
    return place


@pytest.fixture(scope="session")
def kubectl(say: Say) -> Path:
    return binaries(say)["kubectl"]


@pytest.fixture(scope="session")
def helm(say: Say, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(helm_program(say), tmp_path_factory.mktemp("helm"))


def built(kubectl: Path, place: Path) -> list[Mapping[str, Any]]:
    done = process.run([kubectl, "kustomize", place], timeout=_SECONDS)
    assert done.errors == ""
    return list(yaml.safe_load_all(done.output))


@pytest.mark.parametrize("name", CASES)
def test_install_kustomize_and_helm_give_the_same_objects(
    kubectl: Path, helm: Helm, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    wanted = all_manifests(case.settings)

    (tmp_path / "values.yaml").write_text(
        yaml.safe_dump({**chart_values(case.settings), "namespace": {"create": True}})
    )
    words = ("--namespace", case.settings.namespace, "--values", tmp_path / "values.yaml")
    charted = helm.template(TOP / "charts" / "nodeside", "--include-crds", *words)

    assert different(built(kubectl, overlay(tmp_path, case)), wanted) == []
    assert different(without_release(charted), wanted) == []


@pytest.mark.parametrize(("directory", "openshift"), [("base", False), ("openshift", True)])
def test_what_nothing_is_set_in_is_the_same_too(
    kubectl: Path, helm: Helm, directory: str, openshift: bool
) -> None:
    wanted = all_manifests(InstallSettings(openshift=openshift))
    words = ("--set", "namespace.create=true", "--set", f"openshift={str(openshift).lower()}")
    charted = helm.template(
        TOP / "charts" / "nodeside", "--include-crds", "--namespace", "nodeside", *words
    )

    assert different(built(kubectl, TOP / "deploy" / directory), wanted) == []
    assert different(without_release(charted), wanted) == []
