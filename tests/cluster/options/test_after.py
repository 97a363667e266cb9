"""Plans for Drivers that come after one another: `edu`, and `peer` after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.driver.nodes import select_members
from cluster.driver.update import why_queued
from cluster.model.actions import EvictPod
from cluster.model.names import closed_label
from cluster.options import after as neighbours
from cluster.plan.context.context import DriverContext
from cluster.plan.planner import plan
from nodeside.protocol.build_job import BuildVerdict
from nodeside.protocol.labels import assigned_label, node_driver_name, state_label
from nodeside.protocol.node_status import WAITS_FOR_DRIVER, State
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.stagedriver import pods, with_stages

NODES = ("n1", "n2", "n3", "n4")
WORDS = "waits until edu is ready on this node"
REMEDY = "create that, or remove it from spec.after"


def store(name: str) -> dict[str, Any]:
    source = {"oci": f"registry.example.com/modules/{name}", "publish": True}
    return {"prebuilt": {"sources": [source]}}


@pytest.fixture
def model() -> Model:
    model = Model()
    model.add(NODES)
    model.apply_driver("edu", rollout={"maxUnavailable": "2", "canary": 0})
    model.apply_driver("peer", after=["edu"], modules=[{"name": "peer"}])
    for _ in range(3):
        model.carry_out(model.plan().actions)
        report_all(model)
    return model


def report_all(model: Model) -> None:
    for driver in ("edu", "peer"):
        model.report_all(driver=driver)


def context(model: Model, name: str) -> DriverContext:
    found = model.snapshot.drivers[name]
    assert found.driver is not None
    return DriverContext(model.snapshot, found, found.driver)


def condition(model: Model, kind: str, name: str = "peer") -> tuple[str, str, str]:
    model.carry_out(model.plan().actions)
    [found] = [c for c in model.drivers[name].status["conditions"] if c["type"] == kind]
    return found["status"], found["reason"], found["message"]


# --- order ------------------------------------------------------------------------------------


def test_a_driver_that_is_not_there_is_named_and_so_is_a_circle(model: Model) -> None:
    model.apply_driver("peer", after=["core"], modules=[{"name": "peer"}])
    assert condition(model, "Degraded") == (
        "True",
        "DriverMissing",
        f"it comes after driver core, which does not exist: {REMEDY}",
    )
    model.apply_driver("core", after=["third"], modules=[{"name": "core"}])
    model.apply_driver("third", after=["peer"], modules=[{"name": "third"}])
    for name, words in (
        ("peer", "peer after core after third after peer"),
        ("third", "third after peer after core after third"),
    ):
        status, reason, message = condition(model, "Degraded", name)
        assert (status, reason) == ("True", "AfterItself")
        assert message.startswith(f"{words} is a cycle: none of them is loaded")
    model.apply_driver("peer", after=["peer"], modules=[{"name": "peer"}])
    assert condition(model, "Degraded")[2].startswith("peer after peer is a cycle: none of them")


def test_one_before_that_is_being_deleted_is_named(model: Model) -> None:
    model.delete_driver("edu")
    assert condition(model, "Degraded")[1:] == (
        "DriverMissing",
        (
            "it comes after driver edu, which is being deleted: this one leaves each node before "
            "edu does"
        ),
    )


def test_all_that_come_after_are_found_once(model: Model) -> None:
    model.apply_driver("third", after=["peer", "edu"], modules=[{"name": "third"}])
    model.apply_driver("itself", after=["itself", "edu"], modules=[{"name": "itself"}])
    edu = model.snapshot.drivers["edu"].driver
    assert edu is not None
    assert {each.name for each in neighbours.dependents_of(model.snapshot, edu)} == {
        "peer",
        "third",
    }


def test_a_node_that_waits_has_no_deadline_and_is_said(model: Model) -> None:
    name = node_driver_name("peer", "n2")
    model.node_drivers[name] = replace(
        model.node_drivers[name],
        state=State.WAITING.value,
        reason=WAITS_FOR_DRIVER,
        message=WORDS,
        time=1.0,
    )
    model.carry_out(model.plan(now=1e9).actions)
    [ready] = [c for c in model.drivers["peer"].status["conditions"] if c["type"] == "Ready"]
    assert (ready["reason"], ready["message"]) == (
        WAITS_FOR_DRIVER,
        f"n2: WaitsForDriver: {WORDS}",
    )
    [degraded] = [c for c in model.drivers["peer"].status["conditions"] if c["type"] == "Degraded"]
    assert degraded["status"] == "False"


# --- rollout ----------------------------------------------------------------------------------


def given(model: Model, driver: str = "edu") -> list[str]:
    """Nodes with the newest revision of a Driver."""
    found = context(model, driver)
    newest = found.revisions.newest
    ats = found.revisions.assignments
    labels = {
        name: node.labels.get(assigned_label(driver), "") for name, node in model.nodes.items()
    }
    return [name for name, at in labels.items() if at in ats and ats[at].revision == newest]


def test_a_change_keeps_the_budget_of_those_after_too(model: Model) -> None:
    model.apply_driver("edu", version="2.0.0", rollout={"maxUnavailable": "2", "canary": 0})
    model.carry_out(model.plan().actions)
    assert given(model) == ["n1"], "peer lets one node be without it"
    rollout = context(model, "edu").rollout
    assert {why_queued(each, rollout.state) for each in rollout.decisions} == {
        "",
        "maxUnavailable of driver peer, which comes after, is 1, and unavailable: n1",
    }
    assert context(model, "peer").rollout.state.unavailable == ("n1",)

    # edu works there again, peer not yet.
    model.report("n1")
    model.report("n1", State.WAITING, "peer", reason=WAITS_FOR_DRIVER, message=WORDS)
    model.carry_out(model.plan().actions)
    assert given(model) == ["n1"]
    model.report("n1", driver="peer")
    model.carry_out(model.plan().actions)
    assert given(model) == ["n1", "n2"]


def test_dependent_change_does_not_exceed_budget(model: Model) -> None:
    model.apply_driver("edu", version="2.0.0", rollout={"maxUnavailable": "1", "canary": 0})
    model.apply_driver(
        "peer", after=["edu"], modules=[{"name": "peer"}], version="2.0.0", rollout={"canary": 0}
    )
    model.carry_out(model.plan().actions)
    assert (given(model), given(model, "peer")) == (["n1"], [])
    model.report("n1")
    model.carry_out(model.plan().actions)
    assert given(model) == ["n1", "n2"]
    for name in NODES[1:]:
        model.report(name)
        model.carry_out(model.plan().actions)
    assert given(model) == list(NODES)
    model.carry_out(model.plan().actions)
    assert given(model, "peer") == ["n1"]


def test_who_uses_one_after_leaves_first(model: Model) -> None:
    evict = {"rollout": {"evict": {"resources": ["example.com/peer"]}}}
    model.apply_driver("peer", after=["edu"], modules=[{"name": "peer"}], **evict)
    model.carry_out(model.plan().actions)
    model.consume("n1", resources=frozenset({"example.com/peer"}))
    model.apply_driver("edu", version="2.0.0", rollout={"canary": 0})
    evicted: list[EvictPod] = []
    for _ in range(4):
        made = model.plan()
        evicted += [each for each in made.actions if isinstance(each, EvictPod)]
        if evicted:
            break
        assert made.demand is not None
        model.carry_out(made.actions)
    assert [(each.driver, each.node, each.pod) for each in evicted] == [("edu", "n1", "train-0")]
    assert given(model) == []
    model.consumers.clear()
    model.carry_out(model.plan().actions)
    assert given(model) == ["n1"]


def test_a_version_that_breaks_the_one_after_goes_no_further(model: Model) -> None:
    model.apply_driver("edu", version="2.0.0", rollout={"canary": 0})
    for _ in range(6):
        model.carry_out(model.plan().actions)
        for name in given(model):
            model.report(name)
            model.report(name, State.FAILED, "peer", reason="LoadFailed", message="unknown symbol")
    assert given(model) == ["n1"]


def test_a_node_that_waits_for_its_own_reasons_holds_up_nobody(model: Model) -> None:
    model.report("n3", State.FAILED, "edu", reason="LoadFailed", message="the card is dead")
    model.report("n3", State.WAITING, "peer", reason=WAITS_FOR_DRIVER, message=WORDS)
    model.apply_driver("edu", version="2.0.0")
    for _ in range(10):
        model.carry_out(model.plan().actions)
        for name in set(given(model)) - {"n3"}:
            model.report(name)
            model.report(name, driver="peer")
    assert given(model) == ["n1", "n2", "n3"], "the correction has reached the node, too"


def chain(model: Model, **third: Any) -> None:
    """`third` comes after `peer`, and all three are up."""
    model.apply_driver("third", after=["peer"], modules=[{"name": "third"}], **third)
    for _ in range(4):
        model.carry_out(model.plan().actions)
        report_all(model)
        model.report_all(driver="third")


def test_the_last_of_a_chain_is_not_taken_from_two_nodes(model: Model) -> None:
    chain(model)
    newer = {"after": ["peer"], "modules": [{"name": "third"}], "version": "2.0.0"}
    model.apply_driver("edu", version="2.0.0", rollout={"canary": 0})
    model.apply_driver("third", **newer, rollout={"canary": 0})
    model.carry_out(model.plan().actions)
    assert (given(model), given(model, "third")) == (["n1"], [])


def test_each_driver_is_looked_at_once_in_a_plan(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(model)
    looks: list[str] = []

    def counted(snapshot: Any, driver: Any, *rest: Any, **more: Any) -> Any:
        looks.append(driver.name)
        return select_members(snapshot, driver, *rest, **more)

    monkeypatch.setattr("cluster.plan.context.nodes.select_members", counted)
    plan(model.snapshot, 0.0)
    assert sorted(looks) == ["edu", "peer", "third"]


# --- builds -----------------------------------------------------------------------------------


@pytest.fixture
def built() -> Model:
    model = Model()
    model.add(["n1"])
    model.apply_driver("edu", **store("edu"))
    model.apply_driver("peer", after=["edu"], modules=[{"name": "peer"}], **store("peer"))
    model.carry_out(model.plan().actions)
    return model


def running(model: Model) -> list[str]:
    return sorted(job.driver for job in model.jobs.values() if not job.finished)


def done(model: Model, digest: str, verdict: BuildVerdict = BuildVerdict.PUBLISHED) -> None:
    model.end_build(verdict, tag="1.0.0-6.1-x86_64-0123456789ab", digest=f"sha256:{digest * 64}")
    model.carry_out(model.plan().actions)


def test_builds_come_in_order_and_a_change_waits_for_those_after(built: Model) -> None:
    assert running(built) == ["edu"]
    _, reason, message = condition(built, "Ready")
    assert reason == "Building"
    assert message.endswith("waits for the build of driver edu, which it comes after")
    done(built, "a")
    assert running(built) == ["peer"]
    assert given(built) == ["n1"], "at first nobody waits for those after"
    [state] = context(built, "peer").supply.builds.values()
    assert state.build.symbols_of == (
        f"oci:registry.example.com/modules/edu:1.0.0-6.1-x86_64-0123456789ab@sha256:{'a' * 64}",
    )
    done(built, "b")
    for _ in range(2):
        built.carry_out(built.plan().actions)
        report_all(built)
    assert given(built) == given(built, "peer") == ["n1"]

    # A new version of edu: peer is built for it before the node changes.
    built.carry_out(built.plan().actions)
    built.apply_driver("edu", version="2.0.0", **store("edu"), rollout={"canary": 0})
    built.carry_out(built.plan().actions)
    assert running(built) == ["edu"]
    done(built, "c")
    assert (running(built), given(built)) == (["peer"], [])
    message = condition(built, "Ready", "edu")[2]
    assert "driver peer, which comes after it: Job peer-build-" in message
    done(built, "d")
    built.carry_out(built.plan().actions)
    assert given(built) == ["n1"]


def test_a_version_for_which_one_after_does_not_build_changes_no_node(built: Model) -> None:
    done(built, "a")
    done(built, "b")
    for _ in range(3):
        built.carry_out(built.plan().actions)
        report_all(built)
    built.apply_driver("edu", version="2.0.0", **store("edu"), rollout={"canary": 0})
    built.carry_out(built.plan().actions)
    done(built, "c")
    done(built, "d", BuildVerdict.REFUSED)
    assert given(built) == []
    status, reason, message = condition(built, "Degraded", "edu")
    assert (status, reason) == ("True", "BuildFailed")
    assert "driver peer, which comes after it" in message


def test_without_bundles_of_the_one_before_nodes_build(built: Model) -> None:
    done(built, "a", BuildVerdict.BROKEN)
    assert running(built) == []
    assert context(built, "peer").supply.builds == {}


def up(model: Model) -> None:
    """Both drivers are built, and ready on the node."""
    done(model, "a")
    done(model, "b")
    for _ in range(3):
        model.carry_out(model.plan().actions)
        report_all(model)


def test_new_kernel_does_not_wait_for_dependents(built: Model) -> None:
    up(built)
    new = "6.1.0-51-amd64"
    built.reboot("n1", kernel=new)
    built.carry_out(built.plan().actions)
    built.end_build(kernel=new, tag="1.0.0-x", digest=f"sha256:{'c' * 64}")
    for _ in range(2):
        built.carry_out(built.plan().actions)
    built.end_build(BuildVerdict.REFUSED, kernel=new)
    for _ in range(3):
        built.carry_out(built.plan().actions)
    assert assigned_label("edu") in built.nodes["n1"].labels


def test_a_version_that_does_not_build_changes_nothing_of_those_after(built: Model) -> None:
    up(built)

    def of_peer() -> dict[str, str]:
        return {name: d.toolkit for name, d in built.daemonsets.items() if d.driver == "peer"}

    before, jobs = of_peer(), {name for name, j in built.jobs.items() if j.driver == "peer"}
    built.apply_driver("edu", version="2.0.0", **store("edu"), rollout={"canary": 0})
    built.carry_out(built.plan().actions)
    done(built, "c", BuildVerdict.REFUSED)
    for _ in range(3):
        built.carry_out(built.plan().actions)
    assert of_peer() == before
    assert jobs <= built.jobs.keys()


def test_nothing_is_built_or_forgotten_while_the_one_before_is_not_there(built: Model) -> None:
    up(built)
    made, jobs = list(built.made), {name for name, j in built.jobs.items() if j.driver == "peer"}
    built.drivers.pop("edu")
    for _ in range(3):
        built.carry_out(built.plan().actions)
    assert built.made == made
    assert jobs <= built.jobs.keys()


# --- stages -----------------------------------------------------------------------------------


def test_stages_of_the_one_after_end_before_a_change_and_stay_away_during_it() -> None:
    model = with_stages(2, stages=[])
    stages = [{"name": "first", "manifests": "one"}]
    model.apply_driver("peer", after=["edu"], modules=[{"name": "peer"}], stages=stages)

    def live() -> None:
        for name in model.nodes:
            for driver in ("edu", "peer"):
                if model.serving(name, driver):
                    model.report(name, driver=driver)
                    model.relabel(name, {state_label(driver): State.READY.value})
        model.play_stages()
        model.carry_out(model.plan().actions)

    for _ in range(6):
        live()
    assert pods(model) == {"plugin-n0", "plugin-n1"}
    closed = closed_label("peer")

    model.apply_driver("edu", version="2.0.0", rollout={"canary": 0})
    model.carry_out(model.plan().actions)
    assert given(model) == []
    assert [closed in node.labels for node in model.nodes.values()] == [True, False]
    model.play_stages()
    assert pods(model) == {"plugin-n1"}
    model.carry_out(model.plan().actions)
    assert given(model) == ["n0"]
    for _ in range(2):  # peer is there still, and works
        model.play_stages()
        model.carry_out(model.plan().actions)
        assert pods(model) == {"plugin-n1"}
    model.report("n0")
    model.carry_out(model.plan().actions)
    model.play_stages()
    assert "plugin-n0" in pods(model)


def test_stages_of_the_last_of_a_chain_end_too() -> None:
    model = with_stages(2, stages=[])
    stages = [{"name": "first", "manifests": "one"}]
    model.apply_driver("peer", after=["edu"], modules=[{"name": "peer"}])
    third = {"after": ["peer"], "modules": [{"name": "third"}]}
    model.apply_driver("third", **third, stages=stages)
    for _ in range(8):
        for name in model.nodes:
            for driver in ("edu", "peer", "third"):
                if model.serving(name, driver):
                    model.report(name, driver=driver)
                    model.relabel(name, {state_label(driver): State.READY.value})
        model.play_stages()
        model.carry_out(model.plan().actions)
    assert pods(model)
    model.apply_driver("edu", version="2.0.0", rollout={"canary": 0})
    for _ in range(4):
        model.carry_out(model.plan().actions)
        model.play_stages()
    assert given(model) == ["n0"]
