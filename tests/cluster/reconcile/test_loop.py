"""The loop: debounced, apart for each Driver, patient while the API server is gone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from cluster.kube.election import Leadership
from cluster.kube.errors import Forbidden, Unreachable
from cluster.kube.reflector import WatchHealth
from cluster.kube.wakeup import Wakeup
from cluster.model.actions import Apply, EmitEvent, Plan, SetStatus
from cluster.model.lanes import STATUS, Lane
from cluster.model.snapshot import DriverObject, Snapshot
from cluster.model.stages import Template
from cluster.options.drain.pods import demand_of
from cluster.plan import planner
from cluster.plan.plan_cache import PlanCache
from cluster.plan.plan_driver import plan_driver
from cluster.plan.planner import Planner, plan
from cluster.reconcile.executor import ExecutionResult
from cluster.reconcile.failures import failure_of
from cluster.reconcile.loop import Controller
from cluster.reconcile.timings import CpuBudget, LoopTimings
from nodeside.spec.fleet import Evict
from tests.cluster.fakes.loop import LONG, QUICK, FakeApplier, FakeView
from tests.cluster.fakes.model import Model, RenderedAtOnce
from tests.cluster.fakes.stagedriver import speak, with_stages


def model(*names: str) -> Model:
    made = Model()
    made.add(["n1"])
    for name in names:
        made.apply_driver(name, modules=[{"name": name}])
    return made


def run_until(
    made: Model,
    executor: FakeApplier,
    planning: Any,
    holds: Callable[[], bool],
    view: FakeView | None = None,
) -> Controller:
    """Lead until something is so."""
    stopping, wakes = threading.Event(), Wakeup()
    controller = Controller(
        view or FakeView(made),  # type: ignore[arg-type]
        wakes,
        executor,  # type: ignore[arg-type]
        planning,
        stopping=stopping,
        pace=QUICK,
        wall=lambda: 0.0,
        jitter=lambda: 1.0,
    )
    leadership = Leadership()
    leadership.begin(float("inf"))
    thread = threading.Thread(target=controller.work_as_leader, args=(leadership,), daemon=True)
    thread.start()
    pause = threading.Event()
    held = False
    for _ in range(int(LONG / 0.01)):
        if held := holds():
            break
        wakes.wake()
        pause.wait(0.01)
    stopping.set()
    wakes.wake()
    thread.join(LONG)
    assert held
    assert not thread.is_alive()
    return controller


def waits(*took: float, every: float = 0.25) -> list[float]:
    """After plans that took so much, one as soon as it may be after the other."""
    pace, now, found = LoopTimings(), 0.0, []
    allowance = CpuBudget(pace, now)
    for seconds in took:
        allowance.charge_plan(seconds, now)
        found.append(allowance.seconds_to_wait(now))
        now += max(every, found[-1])
    return found


def test_after_a_while_without_news_looks_follow_each_other_at_once() -> None:
    assert waits(*[0.04] * 20) == [0.0] * 20


def test_looks_that_go_on_and_on_stretch_with_what_they_cost_up_to_a_limit() -> None:
    assert waits(*[0.04] * 200)[-1] == pytest.approx(2.0)
    assert waits(*[0.004] * 2000) == [0.0] * 2000
    assert waits(*[3.0] * 20)[-1] == pytest.approx(LoopTimings().longest)


def test_one_slow_plan_does_not_slow_the_loop() -> None:
    assert waits(0.01, 3.0, 0.01, 0.01) == [0.0] * 4


def test_what_was_spent_comes_back_with_time() -> None:
    assert waits(*[0.04] * 200, every=2.0) == [0.0] * 200


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Planner]:
    """Planners with a bug that one Driver brings out, or several, or none of them."""

    def planner_for(*names: str) -> Planner:
        def plan_one(snapshot: Snapshot, found: DriverObject, *rest: Any) -> Plan:
            if found.name in names:
                raise KeyError("a bug")
            return plan_driver(snapshot, found, *rest)

        monkeypatch.setattr(planner, "plan_driver", plan_one)
        return Planner()

    return planner_for


def degraded(made: Model, name: str) -> str:
    status = made.drivers[name].status
    found = (c for c in status.get("conditions", ()) if c["type"] == "Degraded")
    return next((c["reason"] for c in found), "")


def test_planner_exception_is_reported_on_its_driver_only(
    broken: Callable[..., Planner],
) -> None:
    made = model("bad", "good")

    run_until(
        made,
        FakeApplier(made),
        broken("bad"),
        lambda: degraded(made, "bad") == "InternalError" and degraded(made, "good") != "",
    )

    assert degraded(made, "good") == "AsExpected"
    assert [found.driver for found in made.daemonsets.values()] == ["good"]


def test_what_is_refused_for_one_driver_becomes_its_condition_and_goes_when_it_is_mended() -> None:
    made, refuse = model("bad", "good"), [True]

    def fails(made_plan: Plan) -> ExecutionResult | None:
        bad = [a for a in made_plan.actions if isinstance(a, Apply) and a.driver == "bad"]
        if not refuse[0] or not bad:
            return None
        made.carry_out(a for a in made_plan.actions if a.driver == "good")
        error = Forbidden("no rule", status=403)
        return ExecutionResult(failures={Lane("bad"): failure_of(error, "apply DaemonSet bad-1")})

    executor = FakeApplier(made, fails)
    run_until(made, executor, plan, lambda: degraded(made, "bad") == "Forbidden")
    assert degraded(made, "good") == "AsExpected"

    refuse[0] = False
    run_until(made, executor, plan, lambda: degraded(made, "bad") == "AsExpected")


def test_lane_in_backoff_stays_failed_after_a_long_round() -> None:
    made, stopping, wakes, clock = model("good"), threading.Event(), Wakeup(), [0.0]
    refused = failure_of(Forbidden("no rule"), "set the status of driver good")

    def slow(planned: Plan) -> ExecutionResult:
        clock[0] += 5.0
        if len(executor.plans) == 6:
            stopping.set()
        wakes.wake()
        written = any(isinstance(action, SetStatus) for action in planned.actions)
        return ExecutionResult(
            failures={Lane("good", STATUS): replace(refused, mute=True)} if written else {}
        )

    executor = FakeApplier(made, slow)
    leadership = Leadership()
    leadership.begin(float("inf"))
    Controller(
        FakeView(made),  # type: ignore[arg-type]
        wakes,
        executor,  # type: ignore[arg-type]
        plan,
        stopping=stopping,
        pace=QUICK,
        now=lambda: clock[0],
        wall=lambda: 0.0,
        jitter=lambda: 1.0,
    ).work_as_leader(leadership)

    planned = [a for each in executor.plans for a in each.actions if isinstance(a, EmitEvent)]
    # What is of a status goes with it: the executor tells none of these.
    assert [say.reason for say in planned if not say.of_status] == ["Forbidden"]


@pytest.mark.slow
def test_a_status_that_cannot_be_written_is_told_once_in_an_event() -> None:
    made = model("good")
    executor = FakeApplier(made)

    def refuses(planned: Plan) -> ExecutionResult | None:
        if any(isinstance(action, SetStatus) for action in planned.actions):
            error = Forbidden("no permission", hint="can-i patch")
            trouble = replace(failure_of(error, "set the status of driver good"), mute=True)
            return ExecutionResult(failures={Lane("good", STATUS): trouble})
        return None

    def refused() -> list[int]:
        return [at for at, each in enumerate(executor.plans) if refuses(each) is not None]

    def told() -> list[tuple[int, EmitEvent]]:
        acted = ((at, a) for at, each in enumerate(executor.plans) for a in each.actions)
        events = [(at, action) for at, action in acted if isinstance(action, EmitEvent)]
        return [(at, event) for at, event in events if not event.of_status]  # with the status

    executor.fails = refuses
    run_until(made, executor, plan, lambda: bool(told()) and refused()[-1] > told()[0][0])

    assert [(say.reason, say.warning, say.note) for _, say in told()] == [
        (
            "Forbidden",
            True,
            "cannot set the status of driver good: no permission (can-i patch)",
        )
    ]


def test_while_the_server_is_gone_it_is_asked_again_and_again_and_no_driver_is_blamed() -> None:
    made = model("edu")
    outage = ExecutionResult(outage=Unreachable("no answer"))
    executor = FakeApplier(made)
    executor.fails = lambda _: outage if len(executor.plans) < 5 else None

    run_until(made, executor, plan, lambda: degraded(made, "edu") != "")

    assert degraded(made, "edu") == "AsExpected"


def test_nothing_is_planned_before_all_was_listed_since_the_last_leader_acted() -> None:
    class OldView(FakeView):
        looks = 3

        def refresh_watches(self, _timeout: float, *, optional: bool) -> bool:
            assert self.renewed == [7.0]
            assert not executor.plans
            self.looks -= 1
            return not self.looks

    def plan_once(_world: Snapshot, _now: float) -> Plan:
        stopping.set()
        wakes.wake()
        return Plan(())

    made, wakes = model("edu"), Wakeup()
    view, executor, stopping = OldView(made), FakeApplier(made), threading.Event()
    controller = Controller(
        view,  # type: ignore[arg-type]
        wakes,
        executor,  # type: ignore[arg-type]
        plan_once,
        stopping=stopping,
        pace=QUICK,
    )
    leadership = Leadership()
    leadership.begin(float("inf"), alone_since=7.0)
    controller.work_as_leader(leadership)

    assert len(executor.plans) == 1
    assert not view.looks


def test_work_ends_with_the_lead() -> None:
    leadership, made = Leadership(), model()
    controller = Controller(
        FakeView(made),  # type: ignore[arg-type]
        Wakeup(),
        FakeApplier(made),  # type: ignore[arg-type]
        plan,
        stopping=threading.Event(),
    )
    controller.work_as_leader(leadership)  # which was never ours


def test_drivers_are_planned_beside_one_with_a_bug_as_without_it(
    broken: Callable[..., Planner],
) -> None:
    made = model("a", "broken", "c")
    made.apply_driver("late", modules=[{"name": "a"}])
    for day, name in enumerate(("a", "late"), 1):
        made.drivers[name] = replace(made.drivers[name], created=f"2026-01-0{day}T00:00:00Z")
    expected = [a for a in broken()(made.snapshot, 0.0).actions if a.driver != "broken"]

    beside = broken("broken")(made.snapshot, 0.0)

    assert list(beside.errors) == ["broken"]
    assert [action for action in beside.actions if action.driver != "broken"] == expected
    assert {action.driver for action in expected} == {"a", "c", "late"}


def test_a_bug_in_what_is_for_no_driver_is_logged_and_all_are_planned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> NoReturn:
        raise KeyError("a bug")

    made = model("a")
    for name in ("delete_orphans", "end_cordons"):
        monkeypatch.setattr(planner, name, fail)
    monkeypatch.setattr(PlanCache, "drop_outdated", fail)

    run_until(made, FakeApplier(made), Planner(), lambda: degraded(made, "a") == "AsExpected")

    assert "cannot plan: KeyError('a bug')" in caplog.text


def test_one_wake_is_enough_for_many() -> None:
    wakes = Wakeup()
    for _ in range(1000):
        wakes.wake()

    assert wakes.wait(0)
    assert not wakes.wait(0)


@pytest.mark.parametrize("finalizers", [(), ("nodeside.io/driver",)])
def test_a_driver_that_is_being_deleted_in_trouble_is_still_its_own(
    finalizers: tuple[str, ...], broken: Callable[..., Planner]
) -> None:
    made = model("bad", "good")
    made.drivers["bad"] = replace(made.drivers["bad"], deleting=True, finalizers=finalizers)

    run_until(
        made,
        FakeApplier(made),
        broken("bad"),
        lambda: degraded(made, "bad") == "InternalError" and degraded(made, "good") != "",
    )


def test_a_pod_that_refused_to_leave_is_told_of_at_once_and_asked_again_later() -> None:
    made = model("edu")
    made.consume("n1")
    asked = ExecutionResult(asked={"uid-default/train-0": "the budget says no"})
    plans = iter([asked])
    stopping, wakes = threading.Event(), Wakeup()
    executor = FakeApplier(made, lambda _plan: next(plans, ExecutionResult()))
    controller = Controller(
        FakeView(made),  # type: ignore[arg-type]
        wakes,
        executor,  # type: ignore[arg-type]
        lambda _world, _now: Plan(demand=demand_of(Evict(resources=("a/b",)))),
        stopping=stopping,
        pace=QUICK,
    )
    leadership = Leadership()
    leadership.begin(float("inf"))
    thread = threading.Thread(target=controller.work_as_leader, args=(leadership,), daemon=True)
    thread.start()
    pause = threading.Event()
    for _ in range(int(LONG / 0.01)):
        if len(executor.plans) >= 2 or pause.wait(0.01):
            break
    stopping.set()
    wakes.wake()
    thread.join(LONG)

    assert len(executor.plans) >= 2, "nobody else woke it"
    assert executor.plans[1].requeue_after is not None


def test_what_a_plan_wants_rendered_is_planned_with_in_the_same_round() -> None:
    """And a template that was not rendered in time costs its own stage alone."""
    made = with_stages(1)
    made.settle()
    speak(made, "n0")
    templates: set[Template] = set()

    class RenderingView(FakeView):
        def make_snapshot(self) -> Snapshot:
            snapshot = self.model.snapshot
            assert snapshot.stages is not None
            known = {each: RenderedAtOnce().get(each) for each in templates}
            return replace(snapshot, stages=replace(snapshot.stages, rendered=known))

        def render_templates(self, wanted: Any) -> bool:
            new = {each for each in wanted if each.config_map == "one"} - templates
            templates.update(new)
            return bool(new)

    executor = FakeApplier(made)
    run_until(made, executor, plan, lambda: bool(executor.plans), view=RenderingView(made))

    assert [a.words for a in executor.plans[0].actions if isinstance(a, Apply)] == [
        "apply DaemonSet plugin"
    ]
    rows = made.drivers["edu"].status["stages"]
    assert [each["message"] for each in rows][1] == "its templates are being rendered"


# --- after an outage --------------------------------------------------------------------------

OUT = WatchHealth("Node", synced=True, silent=60.0, trouble="no answer", cut_off=True)


def test_while_the_api_server_is_silent_and_until_every_kind_is_heard_again_nothing_is_done() -> (
    None
):
    """A restored etcd undoes what was seen before; a watch takes a moment to notice."""
    made = model("edu")
    view = FakeView(made, [OUT, replace(OUT, kind="Pod")])
    executor, looks = FakeApplier(made), Counter[int]()

    def come_back() -> bool:
        """One kind after the other, each after some looks at the loop."""
        looks[len(view.kinds)] += 1
        if view.kinds and looks[len(view.kinds)] > 10:
            assert executor.plans == []
            view.kinds = view.kinds[1:]
        return bool(executor.plans)

    run_until(made, executor, plan, come_back, view)


def test_a_kind_that_stays_silent_does_not_keep_the_others_waiting() -> None:
    made = model("edu")
    view = FakeView(made, [OUT, replace(OUT, kind="Pod", cut_off=False)])

    run_until(made, executor := FakeApplier(made), plan, lambda: bool(executor.plans), view)
