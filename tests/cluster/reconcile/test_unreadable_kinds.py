"""A kind that may not be read is said by every Driver, until it may be read again."""

from __future__ import annotations

from dataclasses import replace

from cluster.kube.conditions import find_condition
from cluster.kube.errors import RequestInfo, response_error
from cluster.kube.reflector import WatchHealth
from cluster.model.actions import SetStatus
from cluster.model.snapshot import Snapshot
from cluster.plan.planner import plan, report_problems
from cluster.reconcile.failures import unreadable_kinds
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.problems import with_problems
from tests.cluster.fakes.stagedriver import up, with_stages

REFUSED = response_error(RequestInfo("watch", "nodes"), 403, {"message": "nodes is forbidden"})
BLIND = [
    WatchHealth("Pod", True, 1.0),
    WatchHealth("Node", True, 1.0, str(REFUSED), refusal=REFUSED),
]

WORDS = (
    "cannot watch Node objects: no permission to watch nodes: nodes is forbidden (see "
    "what is missing: kubectl auth can-i watch nodes; `nodeside-cluster install` adds the rules)"
)


def settled() -> Model:
    made = Model()
    made.add(["n1"])
    made.apply_driver("edu")
    made.carry_out(plan(made.snapshot, 0.0).actions)
    return made


def blind(made: Model) -> Snapshot:
    problem = unreadable_kinds(BLIND)
    assert problem is not None
    return with_problems(made.snapshot, *((name, problem) for name in made.drivers))


def test_what_is_refused_is_said_by_every_driver_with_what_to_do() -> None:
    made = settled()

    [action] = report_problems(blind(made), 0.0).actions

    assert isinstance(action, SetStatus)
    ready, degraded = (find_condition(action.status, kind) for kind in ("Ready", "Degraded"))
    assert (ready["status"], degraded["status"]) == ("Unknown", "True")
    assert ready["reason"] == degraded["reason"] == "NodesUnreadable"
    assert ready["message"] == degraded["message"] == WORDS


def test_nothing_that_was_claimed_before_is_claimed_any_more() -> None:
    made = up(with_stages(1))
    before = {c["type"]: c["status"] for c in made.drivers["edu"].status["conditions"]}
    assert before["Available"] == before["StagesReady"] == "True"

    made.carry_out(plan(blind(made), 0.0).actions)

    said = {c["type"]: (c["status"], c["reason"]) for c in made.drivers["edu"].status["conditions"]}
    doubtful = ("Unknown", "NodesUnreadable")
    assert said == {
        "Ready": doubtful,
        "Available": doubtful,
        "Progressing": doubtful,
        "Degraded": ("True", "NodesUnreadable"),
        "StagesReady": doubtful,
    }

    made.carry_out(made.plan().actions)
    after = {c["type"]: c["status"] for c in made.drivers["edu"].status["conditions"]}
    assert after == before


def test_every_kind_that_may_not_be_read_is_named() -> None:
    kinds = [replace(BLIND[1], kind=kind) for kind in ("Pod", "Pod", "Job", "Node")]

    trouble = unreadable_kinds(kinds)

    assert trouble is not None
    assert trouble.reason == "PodsUnreadable"
    assert trouble.message.endswith("adds the rules); the same for Job, Node objects")


def test_event_is_emitted_once_and_condition_clears() -> None:
    made = settled()
    made.carry_out(plan(blind(made), 0.0).actions)

    assert plan(blind(made), 0.0).actions == ()
    [healed] = plan(made.snapshot, 0.0).actions
    assert isinstance(healed, SetStatus)
    assert find_condition(healed.status, "Degraded")["reason"] == "AsExpected"


def test_an_api_server_that_is_gone_is_no_refusal() -> None:
    gone = [WatchHealth("Node", True, 60.0, "no answer from the API server")]
    assert unreadable_kinds(gone) is None
