"""Who changes what is ours again and again is answered later and later, and named."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from cluster.driver.daemonset import daemonset_document
from cluster.kube.managed_fields import ExistingObject
from cluster.model.actions import Apply, EmitEvent, Plan
from cluster.model.names import policy_name
from cluster.model.snapshot import DaemonSetObject, Snapshot
from cluster.reconcile.reverted_edits import RevertedEdits
from tests.cluster.fakes.daemonsets import CASES
from tests.cluster.fakes.model import Model

EDIT = "kubectl-edit set spec.template.spec.hostNetwork"


@dataclass
class Played:
    """A DaemonSet that somebody edits, a leader that puts it back, and a clock."""

    standoffs: RevertedEdits = field(default_factory=RevertedEdits)
    now: float = 1000.0
    generation: int = 1
    applies: int = 0

    def __post_init__(self) -> None:
        self.document = daemonset_document(CASES["kubernetes"])
        model = Model()
        model.apply_driver()
        model.plan()
        there = DaemonSetObject(self.document["metadata"]["name"])
        self.snapshot: Snapshot = replace(model.snapshot, daemonsets={there.name: there})

    def create(self) -> None:
        self.standoffs.record_applied(
            [(Apply("edu", self.document), str(self.generation))], self.now
        )

    def look(self, edit: str = EDIT) -> Plan:
        """One round in which the DaemonSet is not as it was applied."""
        over = ExistingObject(str(self.generation), edit)
        wanted = Apply("edu", self.document, over)
        plan = self.standoffs.drop_futile_applies(Plan((wanted,)), self.snapshot, self.now)
        if wanted in plan.actions:
            self.applies += 1
            self.generation += 1
            self.standoffs.record_applied([(wanted, str(self.generation))], self.now)
        return plan

    def news(self) -> list[str]:
        plan = self.standoffs.drop_futile_applies(Plan(), self.snapshot, self.now)
        return [f"{a.reason}: {a.note}" for a in plan.actions if isinstance(a, EmitEvent)]

    def degraded(self) -> str:
        problems = dict(self.standoffs.list_problems(self.snapshot, self.now))
        return problems["edu"].message if problems else ""


def test_a_hand_edit_is_put_back_at_once_and_told_with_who_made_it() -> None:
    played = Played()
    played.create()
    played.generation += 1
    played.look()

    assert played.applies == 1
    name = played.document["metadata"]["name"]
    assert played.news() == [f"EditUndone: DaemonSet {name} is reverted: {EDIT}"]
    assert played.news() == []
    assert played.degraded() == ""


@pytest.mark.slow
def test_a_program_that_edits_for_ever_is_answered_less_and_less_and_named() -> None:
    played = Played()
    played.create()
    for _ in range(4 * 3600):
        played.generation += 1
        played.look()
        played.now += 1.0

    assert 40 < played.applies < 70, "some in the first minutes, then one in five minutes"
    assert "kubectl-edit set spec.template.spec.hostNetwork, again and again" in played.degraded()
    assert "at most once in 300 s" in played.degraded()


def test_a_plan_that_waits_says_until_when() -> None:
    played = Played()
    played.create()
    played.generation += 1
    played.look()
    played.generation += 1

    plan = played.look()

    assert plan.requeue_after == 1.0
    assert played.applies == 1


def test_after_a_quarter_of_an_hour_of_calm_nothing_is_held_against_anybody() -> None:
    played = Played()
    played.create()
    for _ in range(3):
        played.generation += 1
        played.look()
        played.now += 10.0
    assert played.degraded()

    played.now += 900.0
    assert played.degraded() == ""
    played.generation += 1
    played.look()

    assert played.applies == 4
    assert played.degraded() == ""


def test_what_a_webhook_changes_on_its_way_in_is_not_applied_again_and_told_once() -> None:
    played = Played()
    played.create()

    first, second = played.look("something changed it"), played.look("something changed it")

    assert played.applies == 0
    [say] = first.actions
    assert isinstance(say, EmitEvent)
    assert say.reason == "AppliedOtherwise"
    assert "an admission webhook of this cluster changes it; it is left as it is" in say.note
    assert second == Plan()


def test_something_else_that_is_wanted_waits_for_nothing() -> None:
    played = Played()
    played.create()
    for _ in range(5):
        played.generation += 1
        played.look()
    applied = played.applies

    played.document = daemonset_document(CASES["openshift"]) | {
        "metadata": played.document["metadata"]
    }
    played.document["metadata"]["annotations"]["nodeside.io/applied"] = "other"
    played.look(edit="")

    assert played.applies == applied + 1


def policy(played: Model, text: str) -> list[Apply]:
    """What is planned while the ConfigMap of the policy has this text."""
    name = policy_name("edu")
    played.policies[name] = replace(played.policies[name], document=text, stamp=text)
    applies = [each for each in played.plan().actions if isinstance(each, Apply)]
    return [each for each in applies if each.document["metadata"]["name"] == name]


@pytest.mark.slow
def test_a_fight_over_the_policy_of_a_driver_is_slowed_down_and_told() -> None:
    model, standoffs, applies = Model(), RevertedEdits(), 0
    model.add(["n0"])
    model.apply_driver("edu")
    model.settle()
    name = policy_name("edu")
    events: set[str] = set()
    for now in range(600):
        wanted = policy(model, f"edited {now}")
        assert len(wanted) == 1
        plan = standoffs.drop_futile_applies(Plan(tuple(wanted)), model.snapshot, float(now))
        done = [each for each in plan.actions if isinstance(each, Apply)]
        standoffs.record_applied([(each, "new") for each in done], float(now))
        applies += len(done)
        events |= {each.note for each in plan.actions if isinstance(each, EmitEvent)}

    assert applies < 15
    assert events == {f"ConfigMap {name} is reverted: something changed it"}


def test_another_policy_is_sent_at_once_and_is_no_edit() -> None:
    model, standoffs = Model(), RevertedEdits()
    model.add(["n0"])
    model.apply_driver("edu")
    model.settle()
    for now, upgrade in enumerate(["onReboot", "live", "onReboot", "live"]):
        model.apply_driver("edu", upgrade=upgrade)
        wanted = policy(model, "as before")
        plan = standoffs.drop_futile_applies(Plan(tuple(wanted)), model.snapshot, float(now))
        assert plan.actions == tuple(wanted)
        assert not standoffs.record_applied([(each, "new") for each in wanted], float(now))
