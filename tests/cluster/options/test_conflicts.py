"""Two Drivers that have a module in common: neither replaces the other's, and both say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cluster.cli.explain import explain_driver, explain_node
from cluster.model.actions import LabelNode
from cluster.plan.context.context import DriverContext
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import PCI, Model

NEXT_KERNEL = "6.1.0-51-amd64"
NODES = ("n0", "n1", "n2")
WAY_OUT = "delete one of the two drivers, or give them different nodes with hardware.nodeSelector"


def modules(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


def apply(model: Model, name: str, *names: str, **spec: Any) -> None:
    """A Driver with these modules, which keeps the day on which it was made."""
    old = model.drivers.get(name)
    created = old.created if old else f"2026-01-{len(model.drivers) + 1:02}T00:00:00Z"
    model.apply_driver(name, modules=modules(*names), **spec)
    model.drivers[name] = replace(model.drivers[name], created=created)


def settle(model: Model) -> None:
    """One Driver may wait for what becomes of the other, so a plan may follow upon a plan."""
    for _ in range(30):
        actions = model.plan().actions
        if not actions:
            return
        model.carry_out(actions)
        for name in model.drivers:
            model.report_all(driver=name)
    raise AssertionError("not settled")


def two_drivers() -> Model:
    """`edu` came first; each has a module of its own, and works everywhere."""
    model = Model()
    model.add(NODES)
    apply(model, "edu", "edu")
    apply(model, "zeta", "other")
    settle(model)
    assert all(model.condition("Ready", name)["status"] == "True" for name in model.drivers)
    return model


def held(model: Model) -> dict[str, list[str]]:
    return {name: [model.revision(node, name) for node in NODES] for name in model.drivers}


def degraded(model: Model, name: str) -> tuple[str, str]:
    said = model.condition("Degraded", name)
    return said["reason"], said["message"]


def test_the_younger_driver_that_takes_the_elders_module_is_given_to_no_node() -> None:
    model = two_drivers()
    before = held(model)

    apply(model, "zeta", "edu")
    settle(model)

    assert held(model) == before
    reason, message = degraded(model, "zeta")
    assert reason == "ModuleConflict"
    assert message == (
        "driver edu has a module of the same name: nothing changes on n0, n1, n2 until one of the "
        f"two drivers leaves them or has other modules; {WAY_OUT}"
    )
    assert model.condition("Ready", "zeta")["reason"] == "ModuleConflict"
    assert degraded(model, "edu")[0] == "AsExpected", "it has done nothing wrong"


def test_the_elder_driver_that_takes_the_youngers_module_does_not_get_it_either() -> None:
    model = two_drivers()
    before = held(model)

    apply(model, "edu", "edu", "other")
    settle(model)

    assert held(model) == before
    for name, rival in (("edu", "zeta"), ("zeta", "edu")):
        reason, message = degraded(model, name)
        assert reason == "ModuleConflict"
        assert message.startswith(f"driver {rival} has a module of the same name: nothing changes")


def test_it_goes_on_when_one_of_the_two_has_other_modules() -> None:
    model = two_drivers()
    apply(model, "edu", "edu", "other")
    settle(model)

    apply(model, "zeta", "third")
    settle(model)

    for name in model.drivers:
        assert model.condition("Ready", name)["status"] == "True"
        assert {model.revision(node, name) for node in NODES} == {
            model.drivers[name].status["revision"]
        }


def test_a_mere_edit_of_the_younger_one_does_not_hold_up_the_elder() -> None:
    model = two_drivers()
    apply(model, "zeta", "edu")
    settle(model)

    apply(model, "edu", "edu", version="2.0.0")
    settle(model)

    assert model.condition("Ready", "edu")["status"] == "True"
    assert set(held(model)["edu"]) == {model.drivers["edu"].status["revision"]}


def test_nodes_without_the_rival_get_the_new_revision() -> None:
    model = Model()
    model.add(["n0", "n1"], labels={PCI: "true", "pool": "both"})
    model.add(["n2"])
    apply(model, "edu", "edu", hardware={"nodeSelector": {"pool": "both"}})
    apply(model, "zeta", "other")
    settle(model)
    before = model.revision("n0", "zeta")

    apply(model, "zeta", "edu", rollout={"canary": 1})
    settle(model)

    newest = model.drivers["zeta"].status["revision"]
    assert [model.revision(node, "zeta") for node in NODES] == [before, before, newest]


def test_an_elder_that_comes_to_a_node_where_its_module_is_waits_for_it() -> None:
    model = Model()
    model.add(["n0"])
    model.add(["n1"], labels={})
    apply(model, "edu", "edu")
    apply(model, "zeta", "edu", hardware={"nodeSelector": {"zeta": "yes"}})
    model.relabel("n1", {"zeta": "yes"})
    settle(model)
    assert model.revision("n1", "zeta")

    model.relabel("n1", {PCI: "true"})
    settle(model)

    assert assigned_label("edu") not in model.nodes["n1"].labels
    assert model.revision("n1", "zeta")
    assert degraded(model, "edu")[0] == degraded(model, "zeta")[0] == "ModuleConflict"

    model.delete_driver("zeta")
    for _ in range(8):
        model.settle_deleting()
        for node in model.unloads():
            if model.unloads()[node].code is None:
                model.end_unload(node)
    settle(model)
    assert model.revision("n1", "edu")
    assert degraded(model, "edu")[0] == "AsExpected"


def test_a_node_that_moves_in_a_conflict_keeps_its_good_revision() -> None:
    model = two_drivers()
    good = model.drivers["zeta"].status["lastGoodRevision"]
    apply(model, "zeta", "edu")
    settle(model)

    model.reboot("n0", kernel=NEXT_KERNEL)
    settle(model)

    assert model.revision("n0", "zeta") == good
    assert model.serving("n0", "zeta").pool.kernel == NEXT_KERNEL  # type: ignore[union-attr]


def test_explain_names_the_rival_on_the_node() -> None:
    model = two_drivers()
    apply(model, "zeta", "edu")
    settle(model)

    said = explain_node(model.snapshot, "zeta", "n0")

    assert f"driver edu has a module of the same name there; {WAY_OUT}" in said.blocks
    assert [a for a in model.plan().actions if isinstance(a, LabelNode)] == []


def test_drivers_for_one_device_with_other_modules_are_named_and_told_once() -> None:
    """Which of them binds it, chance decides; that they belong together, `after` says."""
    model = two_drivers()
    told = [say for say in model.said if say.reason == "DeviceShared"]
    words = "driver edu is for 1234:11e8 too, on n0, n1, n2: a device has one driver: if both bind"

    assert [(say.driver, say.warning) for say in told] == [("edu", True), ("zeta", True)]
    assert told[1].note.startswith(words)
    [line] = [line for line in explain_driver(model.snapshot, "zeta").there if "is for" in line]
    assert line == told[1].note
    [line] = [line for line in explain_node(model.snapshot, "edu", "n1").there if "is for" in line]
    assert line.startswith("driver zeta is for 1234:11e8 too, on n1: a device has one driver")

    apply(model, "zeta", "other", after=["edu"])
    settle(model)
    assert not [line for line in explain_driver(model.snapshot, "zeta").there if "is for" in line]
    assert [say for say in model.said if say.reason == "DeviceShared"] == told


def test_a_rival_that_failed_keeps_its_nodes_too() -> None:
    model = two_drivers()
    model.report_all(State.FAILED, driver="zeta")
    before = held(model)

    apply(model, "edu", "edu", "other")
    settle(model)

    assert held(model) == before


# --- Drivers that share no node -------------------------------------------------------------------

RACK_A, RACK_B = {"rack": "a"}, {"rack": "b"}


def parted(**second: Any) -> Model:
    """One module in two Drivers, `edu` for the nodes of rack a, which came first, and `zeta`."""
    model = Model()
    model.add(["n0", "n1"], labels={PCI: "true", **RACK_A})
    model.add(["n2"], labels={PCI: "true", **RACK_B})
    apply(model, "edu", "edu", hardware={"nodeSelector": RACK_A})
    apply(model, "zeta", "edu", **second)
    settle(model)
    return model


def test_drivers_whose_nodes_are_parted_have_no_conflict() -> None:
    model = parted(hardware={"nodeSelector": RACK_B})

    for name in model.drivers:
        assert model.condition("Ready", name)["status"] == "True"
        assert degraded(model, name) == ("AsExpected", "nothing failed")
    assert model.revision("n2", "zeta")
    assert explain_driver(model.snapshot, "zeta").blocks == ()


def test_a_mistyped_device_is_told_as_no_node_and_not_as_a_conflict() -> None:
    pci = {"pci": [{"vendor": "4321", "device": "11e9"}]}
    model = parted(hardware=pci)

    ready = model.condition("Ready", "zeta")
    assert ready["reason"] == "NoNodes"
    assert ready["message"].startswith("no node has PCI device 4321:11e9")
    assert degraded(model, "zeta")[0] == "AsExpected"
    [block] = explain_node(model.snapshot, "zeta", "n0").blocks
    assert block.startswith("the node needs the label feature.node.kubernetes.io/pci-4321_11e9")


def test_only_the_nodes_that_both_select_are_named_with_two_ways_out() -> None:
    model = parted(hardware={"nodeSelector": {PCI: "true"}})

    reason, message = degraded(model, "zeta")
    assert reason == "ModuleConflict"
    assert message == (
        "driver edu came first and has a module of the same name: this one is not assigned to "
        f"n0, n1; {WAY_OUT}"
    )
    assert model.condition("Available", "zeta")["message"] == "works on 1 of 1 node"
    assert model.revision("n2", "zeta")
    assert explain_node(model.snapshot, "zeta", "n0").blocks == (
        f"driver edu came first and has a module of the same name; {WAY_OUT}",
    )


def test_a_driver_all_of_whose_nodes_are_anothers_says_so() -> None:
    model = parted(hardware={"nodeSelector": RACK_A})

    assert model.condition("Available", "zeta")["message"] == (
        "another driver has all nodes that it selects"
    )


def test_to_part_the_nodes_of_two_drivers_ends_their_conflict() -> None:
    """As status, explain and check advise it."""
    model = parted(hardware={"nodeSelector": {PCI: "true"}})
    assert degraded(model, "zeta")[0] == "ModuleConflict"

    apply(model, "zeta", "edu", hardware={"nodeSelector": RACK_B})
    settle(model)

    for name in model.drivers:
        assert model.condition("Ready", name)["status"] == "True"


def test_a_node_that_the_elder_leaves_for_another_device_is_not_kept_from_the_younger() -> None:
    """Its former device is still labelled, so the elder leaves, as it says itself."""
    model = Model()
    model.add(["n0"], labels={"feature.node.kubernetes.io/pci-1234_11e8.present": "true"})
    model.add(["n1"], labels={"feature.node.kubernetes.io/pci-1234_11e9.present": "true"})
    apply(model, "edu", "edu", hardware={"pci": [{"vendor": "1234", "device": "11e8"}]})
    settle(model)
    apply(model, "edu", "edu", hardware={"pci": [{"vendor": "1234", "device": "11e9"}]})
    apply(model, "zeta", "edu", hardware={"pci": [{"vendor": "1234", "device": "11e8"}]})

    context = DriverContext(model.snapshot, model.drivers["zeta"], model.drivers["zeta"].driver)  # type: ignore[arg-type]

    assert context.nodes.contested_nodes["edu"] == frozenset()
    assert context.nodes.taken_nodes["edu"] == {"n0"}, "until it has left"
