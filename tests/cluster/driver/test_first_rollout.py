"""Before any revision was good: its canaries try it, and no other node has it until they work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.cli.explain import explain_node
from cluster.driver.deadlines import NODE_DOWN
from cluster.model.parse_pods import CREATING, PULLING
from cluster.model.retries import parse_retries
from cluster.model.snapshot import DriverPod
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import WAITS_FOR_DRIVER, State
from nodeside.protocol.timestamps import rfc3339
from tests.cluster.fakes.model import KERNEL, Model
from tests.cluster.fakes.rollouts import THEN, go_down, look, newest

OTHER = "6.1.0-51-amd64"


def first(count: int = 4, *, canary: int = 1, **spec: Any) -> Model:
    """A Driver that was never anywhere, after its first plan."""
    model = Model()
    model.add((f"n{number}" for number in range(count)), ready_since=THEN - 9999)
    model.apply_driver(rollout={"canary": canary}, **spec)
    look(model, THEN)
    return model


def assigned(model: Model) -> list[str]:
    return [name for name, node in model.nodes.items() if assigned_label("edu") in node.labels]


def why(model: Model) -> tuple[str, str]:
    ready = model.condition("Ready")
    return ready["reason"], ready["message"]


@pytest.mark.parametrize("canary", [1, 2, 3])
def test_its_canaries_have_it_alone_until_all_of_them_work_and_then_all_have_it(
    canary: int,
) -> None:
    model = first(canary=canary)
    tried = [f"n{number}" for number in range(canary)]
    assert assigned(model) == tried

    for name in tried:
        assert assigned(model) == tried
        model.report(name)
        look(model, THEN + 1)

    assert assigned(model) == ["n0", "n1", "n2", "n3"]


def test_without_a_canary_all_have_it_at_once_and_failures_hold_nothing_up() -> None:
    model = first(canary=0)
    assert assigned(model) == ["n0", "n1", "n2", "n3"]

    model.report("n0", State.FAILED)
    model.add(["n4"])
    look(model, THEN + 1)

    assert "n4" in assigned(model)
    assert why(model)[0] == "NodesFailed"


def test_what_the_others_wait_for_is_told_of_the_driver_its_pool_and_each_of_them() -> None:
    model = first()
    model.report("n0", State.BUILDING)
    look(model, THEN + 1)

    revision = model.drivers["edu"].status["revision"]
    assert why(model) == (
        "Canary",
        f"1 of 4 nodes have 1.0.0 ({revision}); tried first on 1 node: building: n0",
    )
    [pool] = model.drivers["edu"].status["pools"]
    assert pool["message"] == "building: n0; waiting for the canary n0: n1, n2, n3"
    assert explain_node(model.snapshot, "edu", "n2").next == (
        "no revision was ever good, so the canaries are first",
        "waits for the canary n0",
        "what the canary does: nodeside-cluster explain edu n0",
    )


def test_one_that_fails_stops_it_with_what_to_type_and_no_other_gets_it() -> None:
    model = first()
    model.report("n0", State.FAILED, reason="BuildFailed", message="edu.c:42: error")
    look(model, THEN + 1)
    model.add(["late"])
    look(model, THEN + 2)

    assert assigned(model) == ["n0"]
    reason, message = why(model)
    assert reason == model.condition("Degraded")["reason"] == "RolloutStopped"
    revision = model.drivers["edu"].status["revision"]
    assert message == (
        f"version 1.0.0 ({revision}) failed on n0, before any version worked: BuildFailed: "
        f"edu.c:42: error; 1 of 5 nodes have 1.0.0 ({revision}), and no other gets it; correct the "
        "spec; to try this one again: nodeside-cluster retry edu; without a canary: kubectl patch "
        """driver edu --type=merge -p '{"spec":{"rollout":{"canary":0}}}'"""
    )
    [block] = explain_node(model.snapshot, "edu", "n2").blocks
    assert block == f"the canary failed, and no revision was ever good: {message}"

    model.apply_driver(rollout={"canary": 0})
    look(model, THEN + 3)
    assert len(assigned(model)) == 5


def test_one_of_two_that_fails_stops_it_though_the_other_works() -> None:
    model = first(canary=2)
    model.report("n0")
    model.report("n1", State.FAILED)
    look(model, THEN + 1)

    assert assigned(model) == ["n0", "n1"]
    assert why(model)[0] == "RolloutStopped"
    assert model.drivers["edu"].status["lastGoodRevision"] == ""

    model.report("n1")
    look(model, THEN + 2)
    assert len(assigned(model)) == 4
    assert model.drivers["edu"].status["casualties"] == []


def test_a_toolkit_that_a_canary_refuses_is_still_named_with_the_line_to_add() -> None:
    model = first()
    model.report("n0", State.FAILED, reason="NoHeaders", message="headers for another kernel")
    look(model, THEN + 1)

    reason, message = why(model)
    assert reason == "ToolkitRefused"
    assert f'spec.toolkit.images: {{"{KERNEL}": IMAGE}}' in message
    assert model.condition("Progressing")["reason"] == "RolloutStopped"
    [block] = explain_node(model.snapshot, "edu", "n1").blocks
    assert block.startswith("the canary failed, and no revision was ever good: n0: toolkit image")


def test_where_every_node_is_a_canary_a_failure_is_one_of_nodes_and_stops_nothing() -> None:
    model = first(1)
    model.report("n0", State.FAILED)
    look(model, THEN + 1)

    assert why(model)[0] == "NodesFailed"


def test_an_edit_is_tried_where_the_old_one_failed_and_its_failure_holds_nothing_up() -> None:
    model = first()
    model.report("n0", State.FAILED)
    look(model, THEN + 1)

    model.apply_driver(version="2.0.0")
    look(model, THEN + 2)
    assert newest(model) == assigned(model) == ["n0"]
    assert why(model)[0] == "Canary"

    model.report("n0")
    look(model, THEN + 3)
    assert newest(model) == ["n0", "n1", "n2", "n3"]


@pytest.mark.parametrize(
    "ails", [{"ready": False}, {"unschedulable": True}], ids=["down", "cordoned"]
)
def test_an_edit_is_tried_elsewhere_if_the_node_that_failed_cannot_tell(
    ails: dict[str, Any],
) -> None:
    model = first()
    model.report("n0", State.FAILED)
    look(model, THEN + 1)
    model.change("n0", **ails)

    model.apply_driver(version="2.0.0")
    look(model, THEN + 2)

    assert newest(model) == ["n1"]
    assert assigned(model) == ["n0", "n1"]


def test_an_edit_is_tried_elsewhere_if_the_old_one_only_leaves_with_a_reboot() -> None:
    model = first()
    model.report("n0", State.REBOOT_REQUIRED)
    look(model, THEN + 1)
    model.apply_driver(version="2.0.0")
    look(model, THEN + 2)

    assert newest(model) == ["n1"]


def test_an_edit_while_a_canary_of_the_old_one_works_has_canaries_of_its_own() -> None:
    model = first(canary=2)
    model.report("n0")
    model.report("n1", State.BUILDING)
    look(model, THEN + 1)

    model.apply_driver(version="2.0.0", rollout={"canary": 2})
    look(model, THEN + 2)
    assert newest(model) == ["n1", "n2"], "maxUnavailable is 1, and it works on n0"

    for moment in (3, 4):
        model.report_all()
        look(model, THEN + moment)
    assert newest(model) == ["n0", "n1", "n2", "n3"]


def test_a_node_that_is_down_or_cordoned_or_without_its_toolkit_is_no_canary() -> None:
    model = Model()
    model.add(["n0"], ready=False)
    model.add(["n1"], unschedulable=True)
    model.add(["n2"], kernel=OTHER)
    model.add(["n3", "n4"])
    model.apply_driver(toolkit={"images": {KERNEL: "registry.example.com/toolkit:1"}})
    look(model, THEN)

    assert assigned(model) == ["n3"]


def test_if_all_are_cordoned_one_of_them_is() -> None:
    model = Model()
    model.add(["n0", "n1"], unschedulable=True)
    model.apply_driver()
    look(model, THEN)

    assert assigned(model) == ["n0"]


def test_while_all_are_down_nobody_has_it_and_the_first_that_comes_up_tries_it() -> None:
    model = Model()
    model.add(["n0", "n1", "n2"], ready=False)
    model.apply_driver()
    look(model, THEN)
    assert assigned(model) == []
    assert why(model)[0] == "NodesNotReady"

    model.change("n1", ready=True)
    look(model, THEN + 1)
    assert assigned(model) == ["n1"]


def test_a_canary_that_goes_away_makes_room_for_another() -> None:
    model = first()
    del model.nodes["n0"]
    model.node_drivers.clear()
    look(model, THEN + 1)

    assert assigned(model) == ["n1"]


def test_a_canary_that_goes_down_is_waited_for_and_then_another_tries_it() -> None:
    model = first()
    go_down(model, "n0", THEN)
    look(model, THEN + NODE_DOWN - 1)
    assert newest(model) == ["n0"]
    assert why(model)[1].endswith("tried first on 1 node: n0 is down")
    assert model.plan(THEN + NODE_DOWN - 1).requeue_after == 1.0

    look(model, THEN + NODE_DOWN)
    assert newest(model) == ["n0", "n1"]

    go_down(model, "n1", THEN + NODE_DOWN)
    look(model, THEN + 2 * NODE_DOWN)
    assert newest(model) == ["n0", "n1"], "a second one is no coincidence"
    reason, message = why(model)
    assert reason == "RolloutStopped"
    assert "failed on n0, n1" in message
    assert "it went down in the middle of its change" in message


def test_a_module_that_panics_takes_one_node_down_and_no_other() -> None:
    model = first()
    for minute in range(20):
        at = THEN + 60 * minute
        model.report("n0", State.LOADING, time=at)
        model.reboot("n0", ready_since=at + 30)
        look(model, at + 40)

    assert newest(model) == assigned(model) == ["n0"]
    assert why(model)[0] == "RolloutStopped"
    assert "it went down again and again" in why(model)[1]

    del model.nodes["n0"]
    model.node_drivers.clear()
    look(model, THEN + 9999)
    assert assigned(model) == [], "another machine would be next"
    assert why(model)[0] == "RolloutStopped"


def test_an_order_to_retry_forgets_what_failed() -> None:
    model = first()
    model.report("n0", State.FAILED, time=THEN)
    look(model, THEN + 1)
    del model.nodes["n0"]
    model.node_drivers.clear()
    look(model, THEN + 2)
    assert assigned(model) == []

    found = model.drivers["edu"]
    model.drivers["edu"] = replace(found, retries=parse_retries(f"*={rfc3339(THEN + 9)}"))
    look(model, THEN + 10)
    assert assigned(model) == ["n1"]


def test_a_canary_that_boots_another_kernel_is_asked_again() -> None:
    model = first()
    model.reboot("n0", kernel=OTHER)
    look(model, THEN + 1)

    assert newest(model) == assigned(model) == ["n0"]
    served = model.serving("n0")
    assert served is not None
    assert served.pool.kernel == OTHER


def test_pools_have_one_canary_between_them() -> None:
    model = Model()
    model.add(["n0", "n1"], kernel=OTHER)
    model.add(["n2", "n3"])
    model.apply_driver()
    look(model, THEN)
    assert assigned(model) == ["n0"]

    model.report("n0")
    look(model, THEN + 1)
    assert len(assigned(model)) == 4


def test_a_pause_holds_those_that_wait_and_says_so() -> None:
    model = first()
    model.report("n0", State.BUILDING)
    model.apply_driver(rollout={"paused": True})
    look(model, THEN + 1)

    assert assigned(model) == ["n0"]
    [pool] = model.drivers["edu"].status["pools"]
    assert pool["message"] == "building: n0; waiting, since the rollout is paused: n1, n2, n3"


def test_nodes_that_had_it_before_there_were_canaries_are_kept_and_no_more_get_it() -> None:
    """As an older controller left them: all nodes have it, and it works on none."""
    model = first(canary=0)
    model.report_all(State.FAILED)
    model.add(["late"])
    model.apply_driver()
    look(model, THEN + 1)

    assert assigned(model) == ["n0", "n1", "n2", "n3"]
    assert why(model)[0] == "RolloutStopped"


def test_another_driver_that_comes_first_has_its_canary_where_both_can_be() -> None:
    model = Model()
    model.add(["n0"], labels={"second": "yes"})
    model.add(["n1", "n2"], labels={"second": "yes", "first": "yes"})
    model.apply_driver("base", hardware={"nodeSelector": {"first": "yes"}}, modules=[{"name": "b"}])
    model.apply_driver(hardware={"nodeSelector": {"second": "yes"}}, after=["base"])
    look(model, THEN)

    assert assigned(model) == ["n1"], "on n0 it would wait for ever"
    assert model.revision("n1", "base")


def test_a_new_controller_goes_on_where_the_last_one_was() -> None:
    model = first()
    model.report("n0", State.BUILDING)
    restarted = Model(**{name: getattr(model, name) for name in _SEEN})
    look(restarted, THEN + 1)

    assert assigned(restarted) == ["n0"]


_SEEN = ("nodes", "drivers", "daemonsets", "node_drivers", "revisions", "policies")


def test_of_many_nodes_that_pull_an_image_the_number_is_told_and_of_few_the_names() -> None:
    model = first(50, canary=0)
    for number in range(40):
        _creates(model, f"n{number}", PULLING)
    for number in range(40, 43):
        _creates(model, f"n{number}", CREATING)
    for number in (0, 43):
        model.report(f"n{number}", State.BUILDING)
    look(model, THEN + 1)

    words = (
        f"building: n0, n43; {CREATING}: n40, n41, n42; pulling images on 39 of 50 nodes; "
        "starting: n44, n45, n46 and 3 more nodes"
    )
    assert why(model) == ("NodesBusy", f"works on 0 of 50 nodes; {words}")
    assert model.drivers["edu"].status["pools"][0]["message"] == words

    for number in range(43):
        _creates(model, f"n{number}", "")
    look(model, THEN + 2)
    assert "pulling" not in why(model)[1]


def test_a_canary_that_pulls_and_a_toolkit_that_is_pulled_are_told_too() -> None:
    model = first()
    _creates(model, "n0", PULLING)
    look(model, THEN + 1)
    assert why(model)[1].endswith("tried first on 1 node: pulling images: n0")

    model.report("n0", State.WAITING)
    look(model, THEN + 2)
    assert why(model)[1].endswith("tried first on 1 node: pulling images: n0")
    said = explain_node(model.snapshot, "edu", "n0").there
    assert "pod pod-of-n0: pulling images" in said


def test_a_pod_that_ends_is_not_the_one_that_is_created() -> None:
    model = first()
    _creates(model, "n0", PULLING)
    model.pods["pod-of-n0"] = replace(model.pods["pod-of-n0"], deleting=True)
    look(model, THEN + 1)

    assert why(model)[1].endswith("tried first on 1 node: starting: n0")


def _creates(model: Model, node: str, what: str) -> None:
    found = model.serving(node)
    assert found is not None
    name = f"pod-of-{node}"
    model.pods[name] = DriverPod(name, driver="edu", node=node, daemonset=found.name, creating=what)


def having(model: Model, driver: str = "edu") -> list[str]:
    return [name for name in model.nodes if assigned_label(driver) in model.nodes[name].labels]


def pass_time(model: Model, *times: float) -> None:
    for time in times:
        model.carry_out(model.plan(time).actions)


def test_a_canary_that_waits_for_a_driver_that_failed_there_is_replaced() -> None:
    model = Model()
    model.add([f"n{number}" for number in range(4)])
    model.apply_driver("edu")
    model.apply_driver("peer", after=["edu"], modules=[{"name": "peer"}])
    pass_time(model, 1.0, 2.0)
    model.report("n0", State.FAILED, driver="edu", message="bad card", time=3.0)
    model.report("n0", State.WAITING, driver="peer", reason=WAITS_FOR_DRIVER, time=3.0)
    pass_time(model, 4.0)
    model.change("n0", unschedulable=True)
    model.apply_driver("edu", version="1.0.1")
    pass_time(model, 5.0)
    for name in ("n1", "n2", "n3"):
        model.report(name, driver="edu", time=6.0)
        pass_time(model, 7.0, 7.5)

    pass_time(model, 9.0, 10.0)

    assert len(having(model, "peer")) > 1


def test_a_canary_that_waits_for_its_reboot_is_waited_for_and_named() -> None:
    model = Model()
    model.add([f"n{number}" for number in range(4)])
    model.apply_driver(upgrade="onReboot")
    pass_time(model, 1.0)
    [canary] = having(model)
    model.report(canary, State.REBOOT_REQUIRED, message="it takes a reboot", time=2.0)
    pass_time(model, 10.0, 1e6)

    assert having(model) == [canary], "no other node tries what none has tried"
    assert canary in model.condition("Progressing")["message"]


def test_a_node_that_was_not_chosen_opens_nothing_after_a_canary_has_failed() -> None:
    model = Model()
    model.add([f"n{number}" for number in range(5)])
    model.apply_driver()
    pass_time(model, 1.0)
    [canary] = having(model)
    model.report(canary, State.FAILED, time=2.0)
    label = model.nodes[canary].labels[assigned_label("edu")]
    model.relabel("n3", {assigned_label("edu"): label})  # a kubelet may label its own node
    model.report("n3", State.READY, time=2.0)

    pass_time(model, 3.0, 4.0)

    assert having(model) == [canary, "n3"]
    assert model.condition("Degraded")["reason"] == "RolloutStopped"
