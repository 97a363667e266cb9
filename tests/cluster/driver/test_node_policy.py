"""A change of how a driver may be replaced and unloaded reaches the nodes, and touches none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cluster.model.actions import Apply
from cluster.model.retries import parse_retries
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model

POLICY = "edu-node-policy"


def running(count: int = 3, **spec: Any) -> Model:
    model = Model()
    model.add(f"n{number}" for number in range(count))
    model.apply_driver(**spec)
    model.settle_ready()
    return model


def assigned(model: Model) -> list[str]:
    return [node.labels[assigned_label("edu")] for node in model.nodes.values()]


@pytest.mark.parametrize(
    "policy",
    [
        {"upgrade": "onReboot"},
        {"unload": {"policy": "never"}},
        {"unload": {"foreign": "keep"}},
    ],
)
def test_who_changes_it_gets_it_told_and_no_rollout(policy: dict[str, Any]) -> None:
    model = running()
    before, revision = assigned(model), model.drivers["edu"].status["revision"]

    model.apply_driver(**policy)
    actions = model.settle()

    assert [a.words for a in actions if isinstance(a, Apply)] == [f"apply ConfigMap {POLICY}"]
    assert assigned(model) == before
    assert model.drivers["edu"].status["revision"] == revision
    assert model.condition("Ready")["status"] == "True"
    (key,) = policy
    assert f'"{key}"' in model.policies[POLICY].document


def test_an_order_to_repeat_a_load_is_told_to_the_nodes_beside_it_and_taken_back() -> None:
    model = running(upgrade="onReboot")
    before = assigned(model)

    for text in ("n1=2026-01-01T00:00:00Z,*=2026-01-02T00:00:00Z", ""):
        model.drivers["edu"] = replace(model.drivers["edu"], retries=parse_retries(text))
        actions = model.settle()
        assert [a.words for a in actions if isinstance(a, Apply)] == [f"apply ConfigMap {POLICY}"]
        told = json.loads(model.policies[POLICY].document)
        orders = {"n1": "2026-01-01T00:00:00Z", "*": "2026-01-02T00:00:00Z"}
        assert told == {"upgrade": "onReboot", **({"retry": orders} if text else {})}

    assert assigned(model) == before


def test_a_wish_that_nothing_be_touched_holds_for_the_version_that_comes_with_it() -> None:
    model = running()
    before = assigned(model)

    model.apply_driver(version="2.0.0", upgrade="onReboot")
    model.settle()

    assert assigned(model) == before
    assert model.condition("Ready")["reason"] == "WaitingForReboot"
    assert model.policies[POLICY].document == '{"upgrade":"onReboot"}\n'


def test_a_wish_that_is_taken_back_lets_the_rollout_go_on() -> None:
    model = running()
    model.apply_driver(version="2.0.0", upgrade="onReboot")
    model.settle()
    revision = model.drivers["edu"].status["revision"]

    model.apply_driver(version="2.0.0")
    model.settle_ready()

    assert model.drivers["edu"].status["revision"] == revision
    assert model.drivers["edu"].status["nodes"]["updated"] == 3
    assert model.policies[POLICY].document == "{}\n"


def test_it_is_there_before_the_first_pod_that_mounts_it() -> None:
    model = Model()
    model.add(["n0"])
    model.apply_driver(upgrade="onReboot")

    applied = [a.document for a in model.plan().actions if isinstance(a, Apply)]

    kinds = [(document["kind"], document["metadata"]["name"]) for document in applied]
    assert kinds[1] == ("ConfigMap", POLICY)
    [pod] = [d["spec"]["template"]["spec"] for d in applied if d["kind"] == "DaemonSet"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "policy"]
    assert volume["configMap"] == {"name": POLICY}, "not optional: no pod guesses"
    [mount] = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "policy"]
    assert "subPath" not in mount, "a file that is mounted alone is never renewed"


def test_an_edit_by_hand_is_undone() -> None:
    model = running(upgrade="onReboot")
    model.policies[POLICY] = replace(model.policies[POLICY], document="{}\n")

    assert [action.words for action in model.settle()] == [f"apply ConfigMap {POLICY}"]


def test_it_goes_with_its_driver() -> None:
    model = running()
    model.delete_driver()
    for _ in range(20):
        model.settle_deleting()
        for node in model.unloads():
            model.end_unload(node)

    assert not model.drivers
    assert model.policies == model.revisions == {}


def test_modules_of_a_driver_that_cannot_be_read_any_more_stay_if_they_were_to_stay() -> None:
    model = running(1, unload={"policy": "never"})
    model.drivers["edu"] = replace(model.drivers["edu"], driver=None, mistakes="a mistake")
    model.delete_driver()
    for _ in range(4):
        model.settle_deleting()

    assert model.unloads() == {}
    assert any(each.note.endswith("n0 (unload.policy: never)") for each in model.said)


def test_a_node_that_waits_for_its_reboot_by_that_wish_is_no_failure() -> None:
    model = running(upgrade="onReboot")
    model.apply_driver(version="2.0.0", upgrade="onReboot", rollout={"canary": 0})
    model.reboot("n0")
    model.settle()
    model.report("n0", State.REBOOT_REQUIRED)
    model.settle()

    assert model.condition("Degraded")["status"] == "False"
