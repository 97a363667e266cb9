"""What the real kustomize, that of kubectl, makes of our base, alone and below an overlay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.install.directory import write_directory
from cluster.install.kustomize import KUSTOMIZATION, base_files
from cluster.install.manifests import InstallSettings, all_manifests
from cluster.model.names import CONTROLLER
from nodeside.system.process import Completed
from tests import yaml_in_c as yaml
from tests.cluster.fakes.same import different
from tests.cluster.fakes.settings import IMAGE, SETTINGS
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster


def written(place: Path, installation: InstallSettings) -> Path:
    write_directory(place, base_files(installation), main=KUSTOMIZATION)
    return place


def overlay(place: Path, more: Mapping[str, Any]) -> Path:
    """An overlay beside the base `nodeside`."""
    place.mkdir()
    document = {"resources": ["../nodeside"], **more}
    (place / KUSTOMIZATION).write_text(yaml.safe_dump(document))
    return place


def built(control_plane: ControlPlane, place: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(control_plane.kubectl("kustomize", place).output))


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_base_gives_the_objects_of_the_manifests(
    control_plane: ControlPlane, tmp_path: Path, kind: str
) -> None:
    found = built(control_plane, written(tmp_path / "nodeside", SETTINGS[kind]))
    assert different(found, all_manifests(SETTINGS[kind])) == []


@pytest.mark.parametrize("openshift", [False, True])
def test_an_overlay_moves_everything_to_another_namespace(
    control_plane: ControlPlane, tmp_path: Path, openshift: bool
) -> None:
    """Accounts in bindings and policies, the controller's own; and the right to tell Events, which
    are in the namespace `default` wherever nodeside is."""
    chosen = InstallSettings(image=IMAGE, openshift=openshift, service_monitor=openshift)
    written(tmp_path / "nodeside", chosen)
    transformers = ["../nodeside/another-namespace"]
    moved = overlay(tmp_path / "o", {"namespace": "drivers", "transformers": transformers})
    wanted = all_manifests(replace(chosen, namespace="drivers"))
    assert different(built(control_plane, moved), wanted) == []


def test_an_overlay_changes_image_and_replicas_as_usual(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    written(tmp_path / "nodeside", InstallSettings())
    more = {
        "images": [{"name": "localhost/nodeside-cluster", "newName": "r.example.com/n"}],
        "replicas": [{"name": CONTROLLER, "count": 3}],
    }
    found = built(control_plane, overlay(tmp_path / "o", more))
    wanted = all_manifests(InstallSettings(image="r.example.com/n", replicas=3))
    assert different(found, wanted) == []


def test_kubectl_applies_the_base(
    control_plane: ControlPlane, installed: InstallSettings, tmp_path: Path
) -> None:
    place = written(tmp_path / "nodeside", InstallSettings(image=IMAGE))
    options = ("--server-side", "--force-conflicts", "--dry-run=server")
    tried: Completed = control_plane.kubectl("apply", *options, "-k", place)
    assert tried.output.count("serverside-applied (server dry run)\n") == len(
        all_manifests(installed)
    )
    assert tried.errors == ""
