"""What is refused of one node holds up that node, and nobody else."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest

from cluster.kube.election import Leadership
from cluster.kube.errors import ApiError, Conflict, Forbidden, Unreachable
from cluster.kube.resources import CONFIG_MAPS, DAEMON_SETS, NODE_DRIVERS
from cluster.kube.wakeup import Wakeup
from cluster.model.actions import Action, Cordon, Create, Delete, LabelNode, Plan, SetStatus
from cluster.model.lanes import Lane
from cluster.reconcile.executor import ExecutionResult, Executor
from cluster.reconcile.failures import Failure, drop_blocked_actions, failure_of, problems_of
from cluster.reconcile.loop import Controller
from cluster.reconcile.node_labels import patch_labels
from tests.cluster.fakes.api import FakeApi, carry_out, leading, model
from tests.cluster.fakes.loop import LONG, QUICK, FakeApplier, FakeView
from tests.cluster.fakes.model import Model

HOOK = Forbidden("no permission: admission webhook w denied the request", status=403)
NO_RULE = Forbidden('User "u" cannot patch resource "nodes"', status=403)
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "edu-unload-1", "namespace": "x"},
}
N1 = Lane("edu", node="n1")

REFUSALS: dict[str, tuple[Action, str]] = {
    "label": (LabelNode("edu", "n1", {"a": "b"}), "patch nodes n1"),
    "cordon": (Cordon("edu", "n1", {}), "get nodes n1"),
    "words": (Delete("edu", NODE_DRIVERS, "edu.n1"), "delete nodedrivers edu.n1"),
    "unload": (Create("edu", POD, "n1"), "create Pod"),
}


@pytest.mark.parametrize("error", [HOOK, ApiError("x", status=413), ApiError("x", status=500)])
@pytest.mark.parametrize(("action", "asked"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_about_one_node_is_no_trouble_of_the_others(
    action: Action, asked: str, error: ApiError
) -> None:
    api = FakeApi({asked: error})

    outcome = carry_out(api, action, LabelNode("edu", "n2", {"a": "b"}), SetStatus("edu", {}))

    assert outcome.failures.keys() == {N1}
    assert "patch nodes n2" in api.asked  # side by side with what n1 is asked
    assert api.asked[-1] == "patch drivers/status edu"


@pytest.mark.parametrize("error", [NO_RULE, ApiError("who?", status=401)])
def test_who_may_label_no_node_at_all_asks_for_one_only(error: ApiError) -> None:
    api = FakeApi({"patch nodes n1": error})

    outcome = carry_out(
        api, LabelNode("edu", "n1", {}), SetStatus("edu", {}), LabelNode("edu", "n2", {})
    )

    assert outcome.failures.keys() == {Lane("edu")}
    assert "patch nodes n2" not in api.asked


def test_a_server_that_is_gone_is_no_trouble_of_a_node() -> None:
    outcome = carry_out(
        FakeApi({"patch nodes n1": Unreachable("no answer")}), LabelNode("edu", "n1", {})
    )

    assert (outcome.failures, outcome.outage is not None) == ({}, True)


def test_what_comes_later_for_that_node_is_not_done_and_nothing_is_taken_from_under_it() -> None:
    api = FakeApi({"delete nodedrivers edu.n1": HOOK})

    carry_out(
        api,
        Delete("edu", NODE_DRIVERS, "edu.n1"),
        LabelNode("edu", "n1", {}),
        Delete("edu", DAEMON_SETS, "edu-1"),
        Delete("edu", CONFIG_MAPS, "edu-1"),
        Delete("other", DAEMON_SETS, "other-1"),
    )

    assert sorted(api.asked) == ["delete daemonsets other-1", "delete nodedrivers edu.n1"]


def test_refused_nodes_are_named_and_rest_while_others_are_served() -> None:
    refused = Failure("Forbidden", "cannot label node n1: no", generation=1, again_at=50)
    failures = {Lane("edu", node=f"n{i}"): refused for i in range(1, 9)}
    actions = (
        LabelNode("edu", "n1", {}),
        LabelNode("edu", "n9", {}),
        Delete("edu", DAEMON_SETS, "edu-1"),
    )

    plan = drop_blocked_actions(Plan(actions), model().snapshot, failures, now=49)
    later = drop_blocked_actions(Plan(actions), model().snapshot, failures, now=50)

    assert plan.actions == (actions[1],)
    assert later.actions == actions[:2]
    [(driver, problem)] = problems_of(failures)
    assert (driver, problem.message) == (
        "edu",
        "cannot label node n1: no; the same for n2, n3, n4, n5, n6 and 2 more",
    )
    assert plan.requeue_after == 1


def test_each_refusal_in_a_row_has_its_node_rest_longer() -> None:
    """In the controller, which knows the Driver's generation."""
    made = Model()
    made.add(["n1", "n2"])
    made.apply_driver()
    stopping, wakes, clock = threading.Event(), Wakeup(), [0.0]
    tried: list[float] = []

    def fails(plan: Plan) -> ExecutionResult | None:
        clock[0] += 0.25
        if len(tried) == 4:
            stopping.set()
        if not any(isinstance(a, LabelNode) and a.node == "n1" for a in plan.actions):
            wakes.wake()
            return None
        tried.append(clock[0])
        made.carry_out(a for a in plan.actions if getattr(a, "node", "") != "n1")
        return ExecutionResult(failures={N1: failure_of(HOOK, "label node n1")})

    controller = Controller(
        FakeView(made),  # type: ignore[arg-type]
        wakes,
        FakeApplier(made, fails),  # type: ignore[arg-type]
        lambda snapshot, now: made.plan(now),
        stopping=stopping,
        pace=QUICK,
        now=lambda: clock[0],
        jitter=lambda: 1.0,
    )
    leadership = Leadership()
    leadership.begin(float("inf"))
    thread = threading.Thread(target=controller.work_as_leader, args=(leadership,), daemon=True)
    thread.start()
    thread.join(LONG)

    assert not thread.is_alive()
    waits = [after - before for before, after in pairwise(tried)]
    assert waits == sorted(waits)
    assert waits[0] >= 1
    assert waits[-1] >= 4


def test_repeated_conflict_is_reported_and_backs_off() -> None:
    api, create = FakeApi({"create Pod": Conflict("exists", status=409)}), REFUSALS["unload"][0]
    with Executor(api, instance="me", wall=lambda: 0.0) as executor, leading() as lead:  # type: ignore[arg-type]
        first, second = (
            executor.carry_out(Plan((create,)), model().snapshot, lead) for _ in range(2)
        )
        api.fails.clear()
        third = executor.carry_out(Plan((create,)), model().snapshot, lead)

    assert (first.overtaken, first.failures) == (True, {})
    assert (second.overtaken, [*second.failures]) == (False, [N1])
    assert (third.done, third.failures) == (1, {})


class Toggled:
    """A node that sets its label to and fro: it was another one, and is as it was seen now."""

    def __init__(self, message: str) -> None:
        self.message = message

    def json_patch(self, *_: object) -> dict[str, Any]:
        raise ApiError(self.message, status=422)

    def get(self, *_: object) -> dict[str, Any]:
        return {"metadata": {"labels": {"k": "a"}}}


def test_a_label_that_was_another_one_for_a_moment_is_a_conflict() -> None:
    wanted = LabelNode("edu", "n1", {"k": "c"})

    with pytest.raises(Conflict):
        patch_labels(Toggled("the server rejected our request"), wanted, {"k": "a"}, dict)  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="is invalid") as caught:
        patch_labels(Toggled('Node "n1" is invalid: metadata.labels'), wanted, {"k": "a"}, dict)  # type: ignore[arg-type]
    assert not isinstance(caught.value, Conflict)
