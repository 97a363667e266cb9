"""The words of a status: short, concrete, and inside the limits of the CRD."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cluster.driver.status.messages import and_more, few_of
from cluster.install.crds import driver_crd
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.stagedriver import up, with_stages
from tests.tries import sampled

SCHEMA = driver_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]


def states() -> list[Model]:
    """Models in every kind of trouble."""
    empty, first, failing, stopped, paused, wrong, missing = (Model() for _ in range(7))
    staged = up(with_stages(2))
    staged.config_map("two", a_yaml="{{ nothing }}")
    staged.settle()
    for model in (first, failing, stopped, paused, wrong, missing):
        model.add(f"n{number}" for number in range(5))
    for model in (empty, first, failing, stopped, paused):
        model.apply_driver(rollout={"canary": 0} if model is failing else {})
        model.settle()
    failing.report_all(State.FAILED)
    stopped.report_all(State.FAILED)
    paused.report_all()
    paused.settle_ready()
    paused.apply_driver(version="2", rollout={"paused": True})
    wrong.apply_driver(version="")
    missing.apply_driver(toolkit={})
    for model in (failing, stopped, paused, wrong, missing):
        model.settle()
    return [empty, first, failing, paused, wrong, missing, staged, stopped]


def known(schema: dict[str, Any], value: Any, where: str) -> None:
    """Whether the CRD keeps all of it: what it does not know is pruned, and planned again."""
    if schema["type"] == "object":
        assert set(value) <= set(schema["properties"]), where
        for key, entry in value.items():
            known(schema["properties"][key], entry, f"{where}.{key}")
    elif schema["type"] == "array":
        for entry in value:
            known(schema["items"], entry, where)
    elif schema["type"] == "string":
        assert len(value) <= schema.get("maxLength", len(value)), where
        assert re.match(schema.get("pattern", ""), value), where
    else:
        assert isinstance(value, int), where


@pytest.mark.parametrize(
    "model",
    states(),
    ids=["empty", "first", "failing", "paused", "wrong", "missing", "staged", "stopped"],
)
def test_the_crd_knows_every_field_of_every_status(model: Model) -> None:
    status = model.drivers["edu"].status

    assert set(status) | {"stages"} == set(SCHEMA["properties"])
    known(SCHEMA, status, "status")


@pytest.mark.parametrize(
    ("at", "reason", "ready", "degraded", "progressing"),
    sampled(
        [
            (0, "NoNodes", "False", "False", "Blocked"),
            (1, "Canary", "False", "False", "Canary"),
            (2, "NodesFailed", "False", "True", "Blocked"),
            (3, "RolloutPaused", "False", "False", "RolloutPaused"),
            (4, "InvalidSpec", "False", "True", "InvalidSpec"),
            (5, "ToolkitMissing", "False", "True", "Blocked"),
            (6, "StageInvalid", "True", "True", "Complete"),
            (7, "RolloutStopped", "False", "True", "RolloutStopped"),
        ],
        3,
    ),
)
def test_one_word_says_what_is_the_matter(
    at: int, reason: str, ready: str, degraded: str, progressing: str
) -> None:
    model = states()[at]

    assert model.condition("Ready")["reason"] == reason
    assert model.condition("Ready")["status"] == ready
    assert model.condition("Degraded")["status"] == degraded
    assert model.condition("Progressing")["reason"] == progressing


def test_a_message_names_a_few_nodes_and_counts_the_rest() -> None:
    assert few_of([]) == ""
    assert few_of(["n1", "n2", "n3"]) == "n1, n2, n3"
    assert few_of(["n1", "n2", "n3", "n4"]) == "n1, n2, n3 and 1 more node"
    assert few_of(f"n{number}" for number in range(10)) == "n0, n1, n2 and 7 more nodes"
    assert and_more("", "pools") == ""
    assert and_more("a", "pools") == " (and 1 more pool)"
    assert and_more("ab", "pools") == " (and 2 more pools)"


def test_a_pool_says_what_keeps_it_from_being_ready() -> None:
    rows = [model.drivers["edu"].status["pools"] for model in states()[1:4]]

    assert [row[0]["reason"] for row in rows] == ["NodesBusy", "NodesFailed", "Ready"]
    assert rows[1][0]["message"] == "n0, n1, n2 and 2 more nodes: failed"
    assert rows[0][0]["message"] == (
        "starting: n0; waiting for the canary n0: n1, n2, n3 and 1 more node"
    )
    assert rows[0][0]["nodes"] == {
        "wanted": 5, "assigned": 1, "updated": 1, "ready": 0, "failed": 0,
    }  # fmt: skip
