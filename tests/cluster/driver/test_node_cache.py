"""What a look takes over from the one before; that plans are the same is checked by `Model`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cluster.driver.daemonset import has_same_content
from cluster.driver.nodes import NodeCache
from cluster.kube.managed_fields import ObjectMeta
from cluster.plan.context.context import DriverContext, Memory
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model


def rolled_out(*nodes: str, **spec: Any) -> Model:
    model = Model()
    model.add(nodes)
    model.apply_driver(**spec)
    model.settle_ready()
    return model


def look(model: Model, memory: Memory) -> DriverContext:
    found = model.drivers["edu"]
    assert found.driver is not None
    return DriverContext(model.snapshot, found, found.driver, memory=memory)


def test_nothing_is_concluded_twice_of_a_node_that_did_not_change() -> None:
    model, memory = rolled_out("n0", "n1"), Memory()
    before = look(model, memory).rollout.decisions

    model.report("n1", State.FAILED)

    after = look(model, memory).rollout.decisions
    assert after[0] is before[0]
    assert after[1] is not before[1]
    assert [decision.member.health.name for decision in after] == ["WORKING", "BROKEN"]


def test_an_object_that_says_the_same_once_more_is_another_one() -> None:
    """A memory does not compare what it was given: what is left out of a comparison counts too."""
    model, memory = rolled_out("n0"), Memory()
    [before] = look(model, memory).members

    model.nodes["n0"] = replace(model.nodes["n0"], labelled=1_800_000_000.0)

    [after] = look(model, memory).members
    assert after == before
    assert after is not before


def test_another_spec_is_another_ground_for_every_node() -> None:
    model, memory = rolled_out("n0"), Memory()
    assert len(look(model, memory).members) == 1

    model.apply_driver(hardware={"nodeSelector": {"example.com/edu": "yes"}})

    assert look(model, memory).members == ()


def test_nodes_that_are_gone_are_forgotten() -> None:
    model, memory = rolled_out("n0", "n1", "n2"), Memory()
    assert len(look(model, memory).rollout.decisions) == 3

    del model.nodes["n1"]

    assert len(look(model, memory).rollout.decisions) == 2
    assert memory.members.results.keys() == memory.decisions.results.keys() == {"n0", "n2"}


def test_daemonsets_that_are_as_wanted_are_not_drawn_up_again_and_hand_edits_are_seen() -> None:
    model = rolled_out("n0")
    assert model.plan().actions == ()
    [(name, found)] = model.daemonsets.items()

    model.daemonsets[name] = replace(found, spec={**found.spec, "revisionHistoryLimit": 7})

    assert [action.words for action in model.plan().actions] == [f"apply DaemonSet {name}"]


def test_a_field_that_somebody_took_over_is_seen_where_nothing_else_of_a_daemonset_changed() -> (
    None
):
    [there] = rolled_out("n0").daemonsets.values()
    entry = {
        "manager": "nodeside-cluster",
        "time": "2027-01-15T08:00:00Z",
        "fieldsV1": {"f:spec": {}},
    }
    one = replace(there, meta=ObjectMeta(managed=(entry,)))
    later = replace(
        there, meta=ObjectMeta(managed=({**entry, "time": "2027-01-15T09:00:00Z"},)), touched=9
    )
    taken = replace(there, meta=ObjectMeta(managed=(entry, {**entry, "manager": "somebody"})))

    assert has_same_content(one, later)
    assert not has_same_content(one, taken)
    assert not has_same_content(one, replace(one, spec={}))


def test_on_another_ground_nothing_is_known() -> None:
    memory: NodeCache[int] = NodeCache()
    memory.results_for("one")["n0"] = 1

    assert memory.results_for("one") == {"n0": 1}
    assert memory.results_for("two") == {}
    assert memory.results_for("one") == {}
