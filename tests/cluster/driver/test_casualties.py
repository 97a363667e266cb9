"""What a revision has cost is not forgotten with the nodes that it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from cluster.cli.explain import explain_driver
from cluster.driver.casualties import Casualty, CasualtyKind, limit_casualty_rows
from cluster.driver.deadlines import NODE_DOWN
from cluster.model.retries import parse_retries
from cluster.model.status_schema import CASUALTY_LIMIT
from cluster.plan.context.context import DriverContext
from nodeside.protocol.node_status import State
from nodeside.protocol.timestamps import rfc3339
from tests.cluster.fakes.model import Model

THEN = 1_800_000_000.0
SPEC: dict[str, Any] = {"version": "2", "rollout": {"canary": 1, "maxFailed": "1"}}


def changing(count: int = 4, **rollout: Any) -> Model:
    """A second version, and n0 tries it."""
    model = Model()
    model.add(f"n{number}" for number in range(count))
    model.apply_driver()
    model.settle_ready()
    model.apply_driver(**{**SPEC, "rollout": {**SPEC["rollout"], **rollout}})
    look(model)
    assert newest(model) == ["n0"]
    return model


def look(model: Model, now: float = THEN) -> None:
    """Plans until nothing is left to do: any controller, since nothing but the world is known."""
    for _ in range(10):
        actions = model.plan(now).actions
        if not actions:
            return
        model.carry_out(actions)
    raise AssertionError("not settled")


def fail(model: Model, node: str) -> None:
    model.report(node, State.FAILED, reason="BuildFailed", message="does not compile")
    look(model)


def replace_machine(model: Model, node: str, by: Iterable[str] = ()) -> None:
    del model.nodes[node]
    model.node_drivers.pop(f"edu.{node}", None)
    model.add(by)


def newest(model: Model) -> list[str]:
    wanted = model.drivers["edu"].status["revision"]
    return [name for name in model.nodes if model.revision(name) == wanted]


def remembered(model: Model) -> list[tuple[str, str]]:
    return [(row["node"], row["state"]) for row in model.drivers["edu"].status["casualties"]]


def is_stopped(model: Model) -> bool:
    return bool(model.condition("Degraded")["reason"] == "RolloutStopped")


def test_a_long_failure_does_not_cut_off_the_commands() -> None:
    """A node's own message has up to 1024 characters, of up to four bytes each."""
    model = changing()
    model.report("n0", State.FAILED, reason="Compile", message="\U0001f4a5" * 1024)
    look(model)

    message = model.condition("Ready")["message"]
    assert "nodeside-cluster undo edu; " in message
    assert message.endswith("; to try this one again: nodeside-cluster retry edu")


def test_failure_counts_after_node_is_replaced() -> None:
    model = changing()
    fail(model, "n0")
    assert "nodeside-cluster undo edu" in model.condition("Degraded")["message"]

    replace_machine(model, "n0", by=["new"])
    look(model)
    model.report_all()
    look(model)

    assert is_stopped(model)
    assert newest(model) == []
    assert remembered(model) == [("n0", "Failed")]
    message = model.condition("Degraded")["message"]
    assert "failed on n0, where" in message
    assert "worked: BuildFailed: does not compile; correct the spec" in message
    assert message.endswith("; to try this one again: nodeside-cluster retry edu")
    assert (
        "nodes that failed or went down with the newest version: n0"
        in explain_driver(model.snapshot, "edu").there
    )


def test_a_failure_stops_the_rollout_though_its_node_gets_another_kernel() -> None:
    model = changing(maxUnavailable=2)
    fail(model, "n0")

    model.reboot("n0", kernel="6.1.0-51-amd64")
    look(model)
    model.report_all()
    look(model)

    assert is_stopped(model)
    assert newest(model) == []


@pytest.mark.parametrize("name", ["{}", "{}-new"], ids=["same name", "another name"])
def test_machines_that_die_of_it_and_are_replaced_at_once_stop_it_at_the_second(name: str) -> None:
    """As a MachineHealthCheck does it, long before a machine counts as lost for its silence."""
    model, now, died = changing(count=6), THEN, []
    for _ in range(6):
        for node in newest(model):
            died.append(node)
            model.change(node, ready=False, ready_since=now)
            look(model, now)
            replace_machine(model, node, by=[name.format(node)])
        now += NODE_DOWN / 2
        look(model, now)
        for node in set(model.nodes) - set(newest(model)):
            model.report(node)

    assert died == ["n0", "n1"]
    assert is_stopped(model)
    assert remembered(model) == [("n0", "Lost"), ("n1", "Lost")]
    words = "it went down in the middle of its change"
    assert "failed on n0, n1, where 1.0.0" in model.condition("Degraded")["message"]
    assert words in model.condition("Degraded")["message"]


def test_one_machine_that_goes_away_in_its_change_stops_nothing() -> None:
    model = changing()
    model.change("n0", ready=False, ready_since=THEN)
    look(model)

    replace_machine(model, "n0")
    look(model)

    assert newest(model) == ["n1"]
    assert model.condition("Degraded")["status"] == "False"
    model.report_all()
    model.settle_ready()
    assert model.condition("Ready")["status"] == "True"
    assert remembered(model) == []


def test_a_node_where_it_works_after_all_is_no_casualty_any_more() -> None:
    model = changing()
    fail(model, "n0")
    model.report("n0", State.LOADING)
    look(model)
    assert is_stopped(model)

    model.report("n0")
    look(model)

    assert remembered(model) == []
    assert len(newest(model)) == 2


def test_another_version_begins_without_them() -> None:
    model = changing()
    fail(model, "n0")
    replace_machine(model, "n0", by=["new"])
    look(model)

    model.apply_driver(**{**SPEC, "version": "3"})
    model.report_all()
    model.settle_ready()

    assert model.condition("Ready")["status"] == "True"
    assert remembered(model) == []


def test_who_pauses_keeps_them_and_who_resumes_tries_again() -> None:
    model = changing()
    fail(model, "n0")
    replace_machine(model, "n0", by=["new"])
    look(model)

    model.apply_driver(**{**SPEC, "rollout": {**SPEC["rollout"], "paused": True}})
    look(model)
    assert remembered(model) == [("n0", "Failed")]
    assert is_stopped(model)
    model.apply_driver(**SPEC)
    model.report_all()
    look(model)

    assert remembered(model) == []
    assert len(newest(model)) == 1


def order_retry(model: Model, text: str) -> None:
    model.drivers["edu"] = replace(model.drivers["edu"], retries=parse_retries(text))
    look(model, THEN + 60)


@pytest.mark.parametrize("retry", ["{}", "n0={}", "n9=2020-01-01T00:00:00Z,n0={}"])
def test_an_order_to_retry_forgets_the_failures_before_it_and_no_later_one(retry: str) -> None:
    model = changing()
    fail(model, "n0")
    replace_machine(model, "n0", by=["new"])
    look(model)
    assert is_stopped(model)

    order_retry(model, retry.format(rfc3339(THEN + 30)))

    assert remembered(model) == []
    assert not is_stopped(model)
    [again] = newest(model)
    model.report(again, State.FAILED, reason="BuildFailed", message="again", time=THEN + 90)
    look(model, THEN + 90)
    assert is_stopped(model)


def test_a_node_that_still_says_that_it_failed_is_waited_for_after_an_order_to_retry() -> None:
    model = changing()
    fail(model, "n0")

    order_retry(model, rfc3339(THEN + 30))

    assert not is_stopped(model)
    assert remembered(model) == []
    assert newest(model) == ["n0"], "the canary was not replaced by another"
    model.report("n0")
    look(model, THEN + 90)
    assert len(newest(model)) > 1
    assert '"retry":{"*":"' in model.policies["edu-node-policy"].document


@pytest.mark.parametrize("retry", ["n1={}", "2020-01-01T00:00:00Z", "yes", "n0=yes", ",=,"])
def test_an_order_to_retry_something_else_leaves_the_rollout_stopped(retry: str) -> None:
    model = changing()
    fail(model, "n0")
    replace_machine(model, "n0", by=["new"])
    look(model)

    order_retry(model, retry.format(rfc3339(THEN + 30)))

    assert is_stopped(model)
    assert remembered(model) == [("n0", "Failed")]


def test_a_canary_that_goes_down_again_and_again_is_a_failure() -> None:
    model, now = changing(), THEN
    for _ in range(2):
        model.change("n0", ready=False, ready_since=now)
        look(model, now)
        now += 180
        model.reboot("n0", ready=True, ready_since=now)
        look(model, now)
        now += 90

    assert is_stopped(model)
    assert newest(model) == ["n0"]
    assert (
        "it went down again and again in the middle of its change"
        in (model.condition("Degraded")["message"])
    )


def test_canary_that_reboots_unseen_counts_as_failed() -> None:
    model, now = changing(), THEN
    for _ in range(2):
        model.report("n0", State.LOADING)
        look(model, now)
        model.reboot("n0")
        now += 60
        look(model, now)

    assert is_stopped(model)


def test_one_reboot_during_change_is_no_failure() -> None:
    model = changing()
    model.change("n0", ready=False, ready_since=THEN)
    look(model)
    assert remembered(model) == [("n0", "Down")]
    model.change("n0", ready=True, ready_since=THEN + 60)
    model.change("n0", ready=False, ready_since=THEN + 90)  # only the kubelet, in the same boot
    look(model, THEN + 90)
    model.reboot("n0", ready=True, ready_since=THEN + 120)
    look(model, THEN + 120)

    assert not is_stopped(model)
    model.report("n0")
    look(model, THEN + 180)
    assert remembered(model) == []


@pytest.mark.parametrize(("worked_for", "is_remembered"), [(60.0, True), (NODE_DOWN + 1, False)])
def test_a_node_where_it_had_worked_for_a_while_did_not_go_down_of_it(
    worked_for: float, is_remembered: bool
) -> None:
    model = changing(count=8, maxUnavailable=1)
    model.report("n0")
    said = model.node_drivers["edu.n0"]
    model.node_drivers["edu.n0"] = replace(said, time=THEN)
    look(model)

    model.change("n0", ready=False, ready_since=THEN + worked_for)
    look(model, THEN + worked_for)

    assert (("n0", "Down") in remembered(model)) is is_remembered


def test_failed_nodes_without_report_are_kept_first() -> None:
    count = CASUALTY_LIMIT + 50
    every = [Casualty(f"n{number:03}", CasualtyKind.FAILED, "") for number in range(count)]
    model = Model()
    model.add(each.node for each in every[:100])
    model.apply_driver(rollout={"canary": 0})
    model.settle()
    model.report_all(State.FAILED)
    found = model.drivers["edu"]
    assert found.driver is not None
    members = {m.node.name: m for m in DriverContext(model.snapshot, found, found.driver).members}

    rows = limit_casualty_rows(every, members)

    assert len(rows) == CASUALTY_LIMIT
    assert {each.node for each in every[100:]} <= {row["node"] for row in rows}
