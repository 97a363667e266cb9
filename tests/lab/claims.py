"""Claims on devices of the driver `edu` in the lab: what its agents publish and prepare."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nodeside.protocol.labels import dra_driver
from nodeside.system import process
from tests.cluster.e2e.scene import EDU
from tests.lab import devices
from tests.lab.node import LabNode
from tests.lab.story import Story

DRIVER = dra_driver("edu")
NAME = "edu.example.com"  # of the DeviceClass and the ResourceClaimTemplate
FROM_TEMPLATE = {"resourceClaimTemplateName": NAME}
_SLICES = f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{DRIVER}"


def changes() -> dict[str, Any]:
    """Of `spec`: its devices are offered to claims."""
    return {"devices": [devices.entry() | {"expose": "dra"}]}


def apply_manifests(story: Story, directory: Path) -> None:
    """What `nodeside-cluster manifests --driver` prints: a DeviceClass and a template."""
    document = yaml.safe_load(EDU.read_text())
    document["spec"] |= changes()
    file = directory / "claims.yaml"
    file.write_text(json.dumps(document))
    argv = [sys.executable, "-m", "cluster", "manifests", "--driver", str(file)]
    printed = process.run(argv, timeout=60).output
    story.plane.kubectl("apply", "-f", "-", input=printed)


def until_published(story: Story, node: LabNode, count: int) -> None:
    """So many devices of a node are in ResourceSlices."""

    def holds() -> bool:
        slices = (each["spec"] for each in story.scene.items(_SLICES))
        mine = (each.get("devices") or () for each in slices if each["nodeName"] == node.name)
        return sum(map(len, mine)) == count

    story.wait_for(holds, f"{count} devices of {node.name} in ResourceSlices")


def prepared(node: LabNode) -> list[str]:
    """The CDI files of claims."""
    names = node.run("ls", "/var/run/cdi", check=False).output.split()
    return [name for name in names if name.startswith("nodeside.io-edu_")]


def until_prepared(story: Story, node: LabNode, count: int) -> None:
    what = f"{count} claims to be prepared on {node.name}"
    story.wait_for(lambda: len(prepared(node)) == count, what)


def start(story: Story, name: str, claim: Mapping[str, str] = FROM_TEMPLATE) -> None:
    """A pod without privilege that uses a claim; a ReplicaSet makes another if it fails."""
    devices.start(story, name, 0, claims=[{"name": "edu", **claim}])
