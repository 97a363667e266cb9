"""On OpenShift every pod of nodeside asks for nothing that its SecurityContextConstraints do not
list. admission.py judges."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.model.names import DEVICE_AGENT, DRIVER
from tests.cluster.openshift import pods
from tests.cluster.openshift.cluster import openshift

CLUSTER = openshift()


@pytest.mark.parametrize("spec", [{}, pods.FULL, {**pods.FULL, "privileged": True}])
@pytest.mark.parametrize(
    ("what", "by"),
    [
        ("driver", DRIVER),
        ("unload", DRIVER),
        ("build", "restricted-v2"),
        ("preflight", "restricted-v2"),
    ],
)
def test_the_pods_of_a_driver_are_admitted(spec: dict[str, Any], what: str, by: str) -> None:
    made = dict(pods.of_a_driver(**spec))[what]

    assert CLUSTER.create(made)[0] == by


@pytest.mark.parametrize("after", ["", "first"])
@pytest.mark.parametrize("devices", [*([kind] for kind in pods.DEVICES), [*pods.DEVICES]])
def test_the_device_agent_is_admitted_wherever_it_stands(devices: list[str], after: str) -> None:
    declared = [{**pods.DEVICES[kind], "resource": f"example.com/{kind}"} for kind in devices]
    made = pods.agent(declared, after)

    assert CLUSTER.create(made)[0] == DEVICE_AGENT
    waits = any("downwardAPI" in volume for volume in made["spec"]["volumes"])
    assert waits is bool(after)


def test_the_controller_is_admitted_without_constraints_of_its_own() -> None:
    assert CLUSTER.create(pods.controller())[0] == "restricted-v2"


@pytest.mark.parametrize("stage", dict(pods.stack()))
def test_the_stages_of_the_example_are_admitted_where_the_documents_say(stage: str) -> None:
    """With an account that may use the constraints of driver pods: docs/stages.md."""
    template = dict(pods.stack())[stage]
    if stage != "devices":
        template["spec"]["serviceAccountName"] = DRIVER

    assert CLUSTER.create(template)[0] in (DRIVER, DEVICE_AGENT)


def test_the_example_is_about_stages_after_others() -> None:
    waiting = [
        name
        for name, template in pods.stack()
        if any("downwardAPI" in volume for volume in template["spec"]["volumes"])
    ]
    assert waiting == ["devices", "selftest"]


def test_a_pod_that_uses_devices_needs_no_constraints_of_its_own() -> None:
    assert CLUSTER.create(pods.workload())[0] == "restricted-v2"


def test_the_agent_without_a_controller_is_admitted_by_the_agents_constraints() -> None:
    made = pods.lone_agent()
    made["spec"]["serviceAccountName"] = DEVICE_AGENT

    assert CLUSTER.create(made)[0] == DEVICE_AGENT
