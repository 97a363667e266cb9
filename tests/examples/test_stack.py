"""The recipe: it says of the driver what the example says, and its stages can be rendered.

What it does on nodes is in tests/lab/test_stack.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.render.templates import render_to_documents
from nodeside.spec.document import load
from nodeside.spec.fleet import DEVICES_STAGE
from tests import yaml_in_c as yaml

STACK = Path("examples/edu/stack")
KUSTOMIZATION = yaml.safe_load((STACK / "kustomization.yaml").read_text())
GENERATED = {each["name"]: each["files"] for each in KUSTOMIZATION["configMapGenerator"]}
VALUES = {
    "driver": {"name": "edu", "image": "registry.example.com/drivers/edu:1.0.0"},
}


def rendered(config_map: str) -> list[dict[str, Any]]:
    files = {Path(file).name: (STACK / file).read_text() for file in GENERATED[config_map]}
    return [document for _, document in render_to_documents(config_map, files, VALUES)]


def test_its_driver_is_that_of_the_example() -> None:
    driver = yaml.safe_load((STACK / "driver.yaml").read_text())
    del driver["spec"]["stages"]

    assert driver == yaml.safe_load((STACK.parent / "driver.yaml").read_text())


def test_every_stage_has_its_manifests() -> None:
    stages = load(STACK / "driver.yaml").spec.stages

    assert {each.manifests for each in stages if each.name != DEVICES_STAGE} == set(GENERATED)


@pytest.mark.parametrize("config_map", GENERATED)
def test_a_stage_can_be_rendered(config_map: str) -> None:
    assert rendered(config_map)


def test_the_dashboard_is_a_document_for_grafana() -> None:
    [config_map] = rendered("edu-dashboard")
    [text] = config_map["data"].values()
    panels = json.loads(text)["panels"]

    assert config_map["metadata"]["labels"] == {"grafana_dashboard": "1"}
    assert [panel["title"] for panel in panels] == [
        "Devices that work",
        "Devices that containers have",
        "Interrupts",
    ]
