"""Actions become requests: in order for one Driver, apart for several, and never after the lead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.kube.election import Leadership
from cluster.kube.errors import ApiError, Conflict, Forbidden, NotFound, Unreachable
from cluster.kube.managed_fields import ExistingObject
from cluster.kube.resources import CONFIG_MAPS, DAEMON_SETS, DRIVERS, NODES
from cluster.model.actions import (
    Apply,
    Cordon,
    Delete,
    EmitEvent,
    LabelNode,
    Plan,
    SetFinalizers,
    SetStatus,
    Uncordon,
)
from cluster.model.lanes import STATUS, Lane
from cluster.reconcile.executor import Executor
from tests.cluster.fakes.api import FakeApi, carry_out, leading, model
from tests.cluster.fakes.model import Model


def config_map(name: str, driver: str = "edu") -> Apply:
    metadata = {"name": name, "namespace": "x"}
    return Apply(driver, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


def test_actions_of_a_driver_run_in_order_and_its_nodes_in_parallel() -> None:
    api = FakeApi()
    nodes = [LabelNode("edu", f"n{i}", {"a": "b"}) for i in range(50)]
    end = SetStatus("edu", {"revision": "r"})

    outcome = carry_out(api, config_map("a"), *nodes, end)

    assert api.asked[0] == "apply a"
    assert sorted(api.asked[1:51]) == sorted(f"patch nodes n{i}" for i in range(50))
    assert api.asked[51] == "patch drivers/status edu"
    assert outcome.done == 52
    assert outcome.written[NODES] == "151"


def test_the_part_that_is_ours_is_replaced_before_an_apply_where_others_set_fields_of_it() -> None:
    api = FakeApi()
    pods: dict[str, Any] = {"spec": {"containers": []}}
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a", "namespace": "x"},
        "spec": {"replicas": 2, "template": pods},
    }

    carry_out(
        api, Apply("edu", document), Apply("other", document, ExistingObject("1", co_owned=True))
    )

    assert sorted(api.asked) == [*["apply a"] * 3, "patch deployments a"], "and once to check it"
    assert [{"op": "replace", "path": "/spec/template", "value": pods}] in api.bodies


SHARED = Apply(
    "edu",
    {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "a", "namespace": "x"},
        "spec": {"selector": {}},
    },
    ExistingObject("1", co_owned=True, uid="u1"),
)


@pytest.mark.parametrize(
    "error",
    [
        ApiError("no: the server rejected our request due to an error", status=422),
        NotFound("gone", status=404),
    ],
)
def test_a_daemonset_that_was_made_anew_or_is_gone_is_not_replaced(error: ApiError) -> None:
    api = FakeApi({"patch daemonsets a": error})

    outcome = carry_out(api, SHARED)

    assert api.bodies[1][0] == {"op": "test", "path": "/metadata/uid", "value": "u1"}
    assert api.asked == ["apply a", "patch daemonsets a"], "only the check and the patch"
    assert outcome.overtaken
    assert outcome.failures == {}


def test_a_webhook_that_refuses_the_replacement_is_trouble() -> None:
    error = ApiError('admission webhook "w" denied the request: no', status=422)

    outcome = carry_out(FakeApi({"patch daemonsets a": error}), SHARED)

    assert outcome.failures.keys() == {Lane("edu")}


@pytest.mark.parametrize("action", [SHARED, Cordon("edu", "n1", {}), Uncordon("edu", "n1", {})])
def test_no_request_of_an_action_outlasts_the_lead(action: Apply | Cordon | Uncordon) -> None:
    """Every request takes almost as long as it may."""
    clock = [0.0]

    class Slow(FakeApi):
        def _ask(self, words: str, body: Any, limits: dict[str, Any]) -> dict[str, Any]:
            answer = super()._ask(words, body, limits)
            clock[0] += limits["deadline"] - 0.1
            assert clock[0] < 10.0
            return answer

    lead = Leadership(now=lambda: clock[0])
    lead.begin(10.0)
    with Executor(Slow(), instance="me", wall=lambda: 0.0) as executor:  # type: ignore[arg-type]
        outcome = executor.carry_out(Plan((action,)), model().snapshot, lead)

    assert outcome.failures == {}


def test_an_action_stops_between_two_requests_when_the_lead_is_lost() -> None:
    lead = Leadership(now=lambda: 0.0)
    lead.begin(60.0)

    class Loses(FakeApi):
        def _ask(self, *asked: Any) -> dict[str, Any]:
            lead.end()
            return super()._ask(*asked)

    api = Loses()
    with Executor(api, instance="me", wall=lambda: 0.0) as executor:  # type: ignore[arg-type]
        outcome = executor.carry_out(Plan((SHARED,)), model().snapshot, lead)

    assert api.asked == ["apply a"]
    assert outcome.lost is not None


def test_what_failed_ends_the_lane_of_its_driver_and_of_no_other() -> None:
    api = FakeApi({"apply bad": Forbidden("no rule", status=403)})

    outcome = carry_out(
        api, config_map("bad"), LabelNode("edu", "n1", {}), config_map("good", "other")
    )

    assert sorted(api.asked) == ["apply bad", "apply good"]
    assert outcome.failures.keys() == {Lane("edu")}
    assert outcome.failures[Lane("edu")].message == "cannot apply ConfigMap bad: no rule"


def test_an_exception_that_nobody_expected_is_the_drivers_trouble_too() -> None:
    outcome = carry_out(FakeApi({"apply bad": KeyError("x")}), config_map("bad"))

    assert outcome.failures[Lane("edu")].reason == "InternalError"


@pytest.mark.parametrize(
    "error", [Unreachable("no answer"), ApiError("busy", status=429, retryable=True)]
)
def test_a_server_that_is_gone_or_busy_is_nobodys_trouble(error: ApiError) -> None:
    api = FakeApi({"apply first": error})

    outcome = carry_out(api, config_map("first"), config_map("second"))

    assert outcome.outage is error
    assert outcome.failures == {}


def test_a_conflict_is_left_to_the_next_look() -> None:
    outcome = carry_out(FakeApi({"apply a": Conflict("changed", status=409)}), config_map("a"))

    assert (outcome.failures, outcome.outage) == ({}, None)
    assert outcome.overtaken


def test_a_status_that_is_refused_is_known_to_be_so() -> None:
    api = FakeApi({"patch drivers/status edu": Forbidden("no rule", status=403)})

    outcome = carry_out(api, SetStatus("edu", {"revision": "r"}))

    assert outcome.failures[Lane("edu", STATUS)].mute


def test_a_status_that_is_refused_holds_up_only_what_is_told_with_it() -> None:
    api = FakeApi({"patch drivers/status edu": ApiError("too long", status=422)})
    told = EmitEvent("edu", "u", True, "NodesFailed", "n1", of_status=True)

    old = Delete("edu", CONFIG_MAPS, "edu-revision-1", "x", "u", of_status=True)
    actions = SetStatus("edu", {"revision": "r"}), told, old, config_map("next")

    outcome = carry_out(api, *actions)

    assert api.asked == ["patch drivers/status edu", "apply next"]
    assert outcome.failures.keys() == {Lane("edu", STATUS)}


def test_a_node_or_an_object_that_is_gone_is_no_failure() -> None:
    gone = NotFound("gone", status=404)
    api = FakeApi({"patch nodes n1": gone, "delete daemonsets edu-1": gone})

    outcome = carry_out(
        api, LabelNode("edu", "n1", {}), Delete("edu", DAEMON_SETS, "edu-1", "x", "u")
    )

    assert outcome.failures == {}
    assert [deleted.name for deleted in outcome.deleted] == ["edu-1"]
    assert api.bodies[-1] == ("x", "u")


def test_an_event_that_cannot_be_written_is_no_trouble() -> None:
    api = FakeApi({"create Event": Forbidden("no rule", status=403)})

    assert carry_out(api, EmitEvent("edu", "u", True, "Reason", "note")).failures == {}


def test_nothing_is_asked_when_the_lead_is_over() -> None:
    api = FakeApi()

    outcome = carry_out(api, config_map("a"), seconds=-1.0)

    assert api.asked == []
    assert outcome.lost is not None


def test_what_time_ran_out_for_is_left_to_the_next_round_but_the_status_is_told() -> None:
    api, now = FakeApi(), iter([0.0, 1.0, 9.0, *[9.0] * 9])
    actions = (
        LabelNode("edu", "n1", {}),
        config_map("between"),
        LabelNode("edu", "n2", {}),
        Delete("edu", DAEMON_SETS, "old"),
        SetStatus("edu", {"revision": "r"}),
    )
    with (
        Executor(api, instance="me", seconds=5.0, now=lambda: next(now)) as executor,  # type: ignore[arg-type]
        leading() as lead,
    ):
        outcome = executor.carry_out(Plan(actions), model().snapshot, lead)

    assert api.asked == ["patch nodes n1", "apply between", "patch drivers/status edu"]
    assert outcome.unfinished == {Lane("edu")}


def test_finalizers_are_set_of_the_very_object_only() -> None:
    api = FakeApi()

    outcome = carry_out(api, SetFinalizers("edu", "u", ("f",)))

    assert api.bodies == [{"metadata": {"uid": "u", "finalizers": ["f"]}}]
    assert outcome.written.keys() == {DRIVERS}


def test_finalizers_that_somebody_added_meanwhile_are_not_taken_away() -> None:
    """The list goes out as a whole: it is that of the Driver as we saw it, or nothing."""
    api = FakeApi({"patch drivers edu": Conflict("the object has been modified")})

    outcome = carry_out(api, SetFinalizers("edu", "u", ("f",), version="7"))

    assert api.bodies[0]["metadata"]["resourceVersion"] == "7"
    assert outcome.overtaken
    assert not outcome.failures


def test_a_finalizer_is_set_and_taken_off_at_the_version_that_was_seen() -> None:
    made = Model()
    made.apply_driver("edu")
    made.drivers["edu"] = replace(made.drivers["edu"], version="41")
    [first] = [a for a in made.settle() if isinstance(a, SetFinalizers)]
    made.delete_driver("edu")
    [last] = [a for _ in range(4) for a in made.settle_deleting() if isinstance(a, SetFinalizers)]

    assert (first.version, last.version) == ("41", "41")
