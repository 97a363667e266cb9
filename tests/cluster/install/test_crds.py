"""The custom resource definitions on a real API server: they are accepted, and mean the same.

What the parser of driver.yaml accepts or refuses, the API server does too, by schema and CEL. They
differ in two known things: the API server drops nulls, and does not try regular expressions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.install.crds import crd_documents
from cluster.model.limits import fit_status
from cluster.model.status_schema import STATUS
from nodeside.driver.announce.documents import node_driver_document
from nodeside.errors import SpecError
from nodeside.protocol.labels import API_VERSION
from nodeside.protocol.node_status import NodeDriverStatus, Rung, State
from nodeside.spec import Driver, load, parse, to_document
from nodeside.spec.reference import EXAMPLE
from tests.cluster.fakes.installed import install_crds
from tests.cluster.fakes.statuses import full
from tests.controlplane.api_server import MERGE_PATCH, Answer
from tests.controlplane.controlplane import ControlPlane
from tests.patience import patience
from tests.spec.broken import BROKEN, WRONG_IMAGES
from tests.spec.documents import document, drivers
from tests.tries import tries

pytestmark = pytest.mark.cluster

DRIVERS = f"/apis/{API_VERSION}/drivers"
NODE_DRIVERS = f"/apis/{API_VERSION}/nodedrivers"
TRY = "?dryRun=All&fieldValidation=Strict"
IMAGE = "registry.example.com/drivers/edu:1.0"
NOT_IN_CEL = ("expected a Python regular expression", "expected a regular expression in RE2 syntax")

SLOW = settings(max_examples=tries(150), suppress_health_check=list(HealthCheck), print_blob=True)


@pytest.fixture(scope="module", autouse=True)
def served(control_plane: ControlPlane) -> None:
    install_crds(control_plane)


def try_out(control_plane: ControlPlane, value: Mapping[str, Any]) -> Answer:
    """What the API server says to a document, without keeping it."""
    return control_plane.request("POST", DRIVERS + TRY, value)


@cache
def example() -> Driver:
    """The example with every field: reading it takes longer than asking an API server."""
    return load(EXAMPLE)


def mistakes(value: object) -> str:
    """What the parser says to a document; empty if it is good."""
    try:
        parse(value)
    except SpecError as error:
        return str(error)
    return ""


# What a rule found, which CEL does not say.
DETAILS = (": dm_edu", ": cpu 1.5 > 1400m", ": 1025Mi")


@pytest.mark.parametrize(
    "definition", crd_documents(), ids=lambda crd: crd["spec"]["names"]["kind"]
)
def test_the_definitions_are_served(control_plane: ControlPlane, definition: Any) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
    found = control_plane.do("GET", path + definition["metadata"]["name"])
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions


def test_the_example_with_every_field_is_accepted_and_kept_whole(
    control_plane: ControlPlane,
) -> None:
    driver = load(EXAMPLE)
    answer = try_out(control_plane, to_document(driver))
    assert answer.message == ""
    assert parse(answer.document) == driver


def test_the_largest_status_that_the_controller_writes_is_taken(
    control_plane: ControlPlane,
) -> None:
    named = document(image=IMAGE) | {"metadata": {"name": "large"}}
    control_plane.do("POST", DRIVERS, named)

    answer = control_plane.request(
        "PATCH",
        f"{DRIVERS}/large/status",
        {"status": fit_status(full(STATUS))},
        content_type=MERGE_PATCH,
    )

    assert answer.message == ""
    assert answer.document["status"]["casualties"][0]["message"].startswith("错错")
    control_plane.do("DELETE", f"{DRIVERS}/large")


def test_defaults_are_those_of_the_parser(control_plane: ControlPlane) -> None:
    smallest = document(image=IMAGE)
    answer = try_out(control_plane, smallest)
    assert parse(answer.document) == parse(smallest)


@SLOW
@given(driver=drivers())
def test_whatever_the_parser_accepts_is_accepted(
    control_plane: ControlPlane, driver: Driver
) -> None:
    value = to_document(driver)
    value["spec"].setdefault("image", IMAGE)
    answer = try_out(control_plane, value)
    assert answer.message == ""
    assert parse(answer.document) == parse(value)


@pytest.mark.parametrize(("spec", "mistake"), BROKEN)
def test_a_broken_rule_is_refused_in_the_words_of_the_parser(
    control_plane: ControlPlane, spec: dict[str, Any], mistake: str
) -> None:
    answer = try_out(control_plane, document(image=IMAGE, **spec))
    words = next(part for part in mistake.split(": ", 1)[1:])
    if words.startswith(NOT_IN_CEL):
        assert answer.status == 201
        return
    assert answer.status == 422
    for detail in DETAILS:
        words = words.removesuffix(detail)
    assert words in answer.message


@pytest.mark.parametrize(("spec", "remedy"), WRONG_IMAGES)
def test_an_image_that_nobody_could_pull_is_refused_with_the_remedy(
    control_plane: ControlPlane, spec: dict[str, Any], remedy: str
) -> None:
    answer = try_out(control_plane, document(**{"image": IMAGE, **spec}))
    assert answer.status == 422
    assert (remedy or "in body should match") in answer.message


def test_a_driver_without_an_image_is_refused_in_a_cluster(control_plane: ControlPlane) -> None:
    answer = try_out(control_plane, document())
    assert "a cluster needs the pull spec of the driver image" in answer.message


def test_a_name_that_no_label_could_carry_is_refused(control_plane: ControlPlane) -> None:
    value = document(image=IMAGE) | {"metadata": {"name": "x" * 41}}
    assert "metadata.name: expected a DNS label" in try_out(control_plane, value).message


@SLOW
@given(data=st.data())
def test_one_change_anywhere_is_judged_alike(
    control_plane: ControlPlane, data: st.DataObject
) -> None:
    value = to_document(example())
    holder, key = data.draw(st.sampled_from(places(value["spec"])))
    holder[key] = data.draw(scalars() | st.just([]) | st.just({}))
    wrong, answer = mistakes(copy.deepcopy(value)), try_out(control_plane, value)
    assert bool(wrong) == (answer.status != 201), (key, holder[key], wrong, answer.message)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a document where something stands, and one in each mapping where not."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        found += [(value, key) for key in [*value, "unknownField"]]
    if isinstance(value, list):
        found += [(value, index) for index in range(len(value))]
    inner = value.values() if isinstance(value, dict) else value
    return found + [place for one in inner if isinstance(one, dict | list) for place in places(one)]


def scalars() -> st.SearchStrategy[Any]:
    """Values of JSON without null and without a fraction, which no field knows."""
    words = st.sampled_from(
        ["", "a", "8086", "1.0", "../x", "/dev/edu0", "exact", "dkms", "x" * 60]
    )
    numbers = st.sampled_from([-1, 0, 1, 3, 65537, 10**9])
    return words | numbers | st.booleans() | st.text(max_size=3)


def test_the_status_is_apart_from_the_spec(control_plane: ControlPlane) -> None:
    driver = document(image=IMAGE) | {"metadata": {"name": "status-apart"}}
    control_plane.do("POST", DRIVERS, driver | {"status": {"revision": "by a user"}})
    path = f"{DRIVERS}/status-apart"
    assert "status" not in control_plane.do("GET", path)
    status = a_status()
    patch = {"status": status, "spec": {"version": "9.9"}}
    control_plane.do("PATCH", f"{path}/status", patch, content_type=MERGE_PATCH)
    found = control_plane.do("GET", path)
    control_plane.do("DELETE", path)
    assert (found["status"], found["spec"]["version"]) == (status, "1.0")
    assert found["metadata"]["generation"] == 1


def a_status() -> dict[str, Any]:
    nodes = {"wanted": 3, "assigned": 3, "updated": 2, "ready": 2, "failed": 1}
    return {
        "observedGeneration": 1,
        "revision": "3f2a9c01b7de",
        "lastGoodRevision": "3f2a9c01b7de",
        "nodes": nodes,
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-01-02T03:04:05Z",
                "reason": "NodesFailed",
                "message": "1 of 3 nodes failed: worker-2: the module does not compile",
            }
        ],
        "pools": [
            {
                "architecture": "x86_64",
                "osVersion": "418.94.202501221327-0",
                "kernel": "5.14.0-427.50.1.el9_4.x86_64",
                "nodes": nodes,
                "toolkit": "quay.example.com/toolkit@sha256:0",
                "link": "tag",
            }
        ],
    }


def test_a_status_with_an_impossible_condition_is_refused(control_plane: ControlPlane) -> None:
    driver = document(image=IMAGE) | {"metadata": {"name": "status-wrong"}}
    control_plane.do("POST", DRIVERS, driver)
    path, status = f"{DRIVERS}/status-wrong", a_status()
    status["conditions"][0] |= {"status": "Perhaps", "reason": "two words"}
    answer = control_plane.request(
        "PATCH", f"{path}/status", {"status": status}, content_type=MERGE_PATCH
    )
    control_plane.do("DELETE", path)
    assert answer.status == 422
    assert 'supported values: "True", "False", "Unknown"' in answer.message
    assert "status.conditions[0].reason" in answer.message


ANNOUNCED = NodeDriverStatus(
    driver="edu",
    node="worker-1.example.com",
    state=State.FAILED,
    version="1.0",
    kernel="6.1.0-40-cloud-amd64",
    boot_id="2c4a7ba8-2e9b-4d4c-9f2e-1d2f3a4b5c6d",
    reason="BuildFailed",
    message="edu.c:12: error",
    source=Rung.BUILT,
    modules=("edu",),
    stages={"build": 3.5, "load": 1},
)


def test_what_a_node_announces_is_kept_whole(control_plane: ControlPlane) -> None:
    said = node_driver_document(ANNOUNCED)
    answer = control_plane.request("POST", NODE_DRIVERS + TRY, said)
    assert answer.message == ""
    assert answer.document["status"] == said["status"]


def test_kubectl_waits_for_the_driver_on_a_node(control_plane: ControlPlane) -> None:
    path = f"{NODE_DRIVERS}/edu.worker-1.example.com"
    name = "nodedriver/edu.worker-1.example.com"
    control_plane.do("POST", NODE_DRIVERS, node_driver_document(ANNOUNCED, since=1.0))
    waited = ("wait", "--for=condition=Ready", name)
    refused = control_plane.kubectl(*waited, "--timeout=1s", check=False)
    ready = node_driver_document(
        replace(ANNOUNCED, state=State.READY, reason="", message=""), since=2.0
    )
    control_plane.do("PATCH", path, ready, content_type=MERGE_PATCH)
    found = control_plane.kubectl(*waited, f"--timeout={patience(60):.0f}s", check=False)
    listed = control_plane.kubectl("get", "ndrv", "-l", "nodeside.io/state=ready", "-o", "name")
    control_plane.do("DELETE", path)

    assert refused.exit_code != 0
    assert found.exit_code == 0
    assert "edu.worker-1.example.com" in listed.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "happy"}, 'status.state: Unsupported value: "happy"'),
        ({"stages": {"build": "3"}}, "status.stages.build: Invalid value"),
        ({"mood": 1}, 'unknown field "status.mood"'),
    ],
)
def test_what_a_node_would_not_announce_is_refused(
    control_plane: ControlPlane, change: dict[str, Any], words: str
) -> None:
    said = node_driver_document(ANNOUNCED)
    said["status"] |= change
    assert words in control_plane.request("POST", NODE_DRIVERS + TRY, said).message


def test_kubectl_shows_what_a_person_asks_first(control_plane: ControlPlane) -> None:
    driver = document(image=IMAGE) | {"metadata": {"name": "columns"}}
    control_plane.do("POST", DRIVERS, driver)
    path, said = f"{DRIVERS}/columns", node_driver_document(ANNOUNCED)
    patch = {"status": a_status()}
    control_plane.do("PATCH", f"{path}/status", patch, content_type=MERGE_PATCH)
    control_plane.do("POST", NODE_DRIVERS, said)
    asked = ("drv/columns", f"ndrv/{said['metadata']['name']}")
    shown = control_plane.kubectl("get", *asked).output
    control_plane.do("DELETE", path)
    control_plane.do("DELETE", f"{NODE_DRIVERS}/{said['metadata']['name']}")
    rows = [row.split() for row in shown.splitlines() if row]
    counted = ["NODES", "UPDATED", "READY", "FAILED"]
    assert rows[0] == ["NAME", "VERSION", *counted, "STATUS", "AGE", "WHY"]
    assert rows[1][:7] == ["driver.nodeside.io/columns", "1.0", "3", "2", "2", "1", "NodesFailed"]
    assert shown.splitlines()[1].endswith(
        "1 of 3 nodes failed: worker-2: the module does not compile"
    )
    assert rows[2] == ["NAME", "STATE", "VERSION", "KERNEL", "SOURCE", "AGE", "REASON"]
    name = "nodedriver.nodeside.io/edu.worker-1.example.com"
    assert rows[3][:5] == [name, "failed", "1.0", "6.1.0-40-cloud-amd64", "built"]
    assert rows[3][-1] == "BuildFailed"
