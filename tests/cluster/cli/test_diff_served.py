"""`diff` with a real API server: what it says is what kubectl then does, and nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cluster.install.manifests import InstallSettings
from cluster.kube.client import Api
from cluster.kube.errors import NotFound
from cluster.kube.resources import DRIVERS
from nodeside.errors import ExitCode
from nodeside.spec.yamltext import write_yaml
from tests.cluster.fakes.model import document
from tests.console import Done
from tests.console import nodeside_cluster as command
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes

pytestmark = pytest.mark.cluster

NAME = "diffed"
NODES = ("diffed-0.example.com", "diffed-1.example.com")
LABEL = {"example.com/diffed": "yes"}
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def driver(**spec: Any) -> dict[str, Any]:
    return {**document(NAME, hardware={"nodeSelector": LABEL}, **spec), "metadata": {"name": NAME}}


class Scene:
    """Two nodes with the label, and a file."""

    def __init__(self, plane: ControlPlane, file: Path) -> None:
        self.plane, self.file = plane, file

    def diff(self, written: Mapping[str, Any], kubeconfig: Path | None = None) -> Done:
        self.file.write_text(write_yaml(written))
        place = kubeconfig or self.plane.kubeconfig
        return command("diff", "--kubeconfig", place, "-f", self.file, "-o", "json")

    def apply(self, written: Mapping[str, Any], *words: str) -> None:
        self.plane.kubectl("apply", "-f", "-", *words, input=json.dumps(written))


@pytest.fixture
def scene(
    control_plane: ControlPlane, api: Api, installed: InstallSettings, nodes: Nodes, tmp_path: Path
) -> Iterator[Scene]:
    for name in NODES:
        nodes.create(name, labels=LABEL)
    yield Scene(control_plane, tmp_path / "driver.yaml")
    with suppress(NotFound):
        api.delete(DRIVERS, NAME)


def only(done: Done) -> dict[str, Any]:
    assert done.errors == ""
    [found] = done.document["drivers"]
    assert isinstance(found, dict)
    return found


def spec_of(api: Api) -> Any:
    return api.get(DRIVERS, NAME)["spec"]


def test_a_new_driver_is_said_and_not_made(scene: Scene, api: Api) -> None:
    done = scene.diff(driver())

    assert done.code == 1
    assert (only(done)["presence"], only(done)["admission"]["refused"]) == ("new", "")
    canary, others = only(done)["nodes"]
    assert (canary["when"], others["when"]) == ("canary", "next")
    assert sorted([*canary["nodes"], *others["nodes"]]) == sorted(NODES)
    with pytest.raises(NotFound):
        api.get(DRIVERS, NAME)


@pytest.mark.parametrize("words", [(), ("--server-side",)])
def test_what_kubectl_applied_is_no_change_and_what_it_would_change_is_said(
    scene: Scene, api: Api, words: tuple[str, ...]
) -> None:
    first = driver(conflicts={"modules": ["other"]}, rollout={"maxUnavailable": 2})
    scene.apply(first, *words)
    pause = json.dumps({"spec": {"rollout": {"paused": True}}})
    scene.plane.kubectl("patch", "driver", NAME, "--type=merge", "-p", pause)
    before = api.get(DRIVERS, NAME)

    same = scene.diff(first)
    second = driver(version="2.0.0", rollout={"maxUnavailable": 2})
    changed = scene.diff(second)

    assert (same.code, only(same)["fields"]) == (0, [])
    assert changed.code == 1
    said = {each["path"]: (each["before"], each["after"]) for each in only(changed)["fields"]}
    assert said == {
        "spec.version": ("1.0.0", "2.0.0"),
        "spec.conflicts.modules": (["other"], None),
    }
    assert [each["path"] for each in only(changed)["stays"]] == ["spec.rollout.paused"]
    assert api.get(DRIVERS, NAME) == before

    scene.apply(second, *words)

    assert "conflicts" not in spec_of(api)
    assert (spec_of(api)["version"], spec_of(api)["rollout"]["paused"]) == ("2.0.0", True)
    assert scene.diff(second).code == 0


def test_a_warning_of_admission_is_shown(scene: Scene) -> None:
    everywhere = driver()
    del everywhere["spec"]["hardware"]

    def is_warned() -> bool:  # a policy takes a moment to come into force
        found = only(scene.diff(everywhere))["admission"]["warnings"]
        return any("this Driver is for every node" in each for each in found)

    scene.plane.wait_for(is_warned, "the warning of the admission policy")


def test_a_conflict_with_another_manager_is_a_refusal(scene: Scene) -> None:
    scene.apply(driver(), "--server-side")
    scene.apply(driver(version="3"), "--server-side", "--field-manager=flux", "--force-conflicts")

    done = scene.diff(driver(version="2.0.0"))

    assert done.code == ExitCode.CLUSTER
    assert 'conflict with "flux"' in only(done)["admission"]["refused"]


def test_who_may_only_look_is_told_what_could_not_be_asked(scene: Scene) -> None:
    """With the roles that docs/cluster.md names for `explain`."""
    plane = scene.plane
    scene.apply(driver())
    account = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    for role in ("view", "nodeside-explain"):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        binding = {"metadata": {"name": f"diffed-{role}"}, "roleRef": reference}
        plane.do("POST", BINDINGS, {**binding, "subjects": [account]})
    try:
        looker = plane.kubeconfig_of(plane.pod_token("default", "default", None))
        # The aggregated role view gets the rules of an installation after a moment.
        plane.wait_for(lambda: scene.diff(driver(), looker).code == 0, "the right to look")
        done = scene.diff(driver(version="2.0.0"), looker)
    finally:
        for role in ("view", "nodeside-explain"):
            plane.do("DELETE", f"{BINDINGS}/diffed-{role}")

    assert done.code == 1
    assert "no permission to patch drivers" in only(done)["admission"]["notAsked"]
    assert [each["path"] for each in only(done)["fields"]] == ["spec.version"]
    assert only(done)["revision"]["kind"] == "new"
