"""Which changes of a node wake the controller."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.cache.cache import ClusterCache
from cluster.cache.node_filter import node_filter_of
from cluster.model.labelmap import labels_of
from cluster.model.names import OSTREE_LABEL
from cluster.model.snapshot import Node, Settings
from nodeside.protocol.labels import state_label
from tests.cluster.fakes.model import PCI, Model
from tests.cluster.fakes.scripted import ScriptedServer

NFD = "feature.node.kubernetes.io/cpu-cpuid.AVX2"
NODE = Node("n0", labels=labels_of({NFD: "true", PCI: "true"}), kernel="6.1.0-50-amd64")


def wakes(model: Model, **labels: str) -> bool:
    """Whether a node that has these labels too, with `/` for `__`, is news."""
    more = {key.replace("__", "/"): value for key, value in labels.items()}
    after = replace(NODE, labels=labels_of({**NODE.labels, **more}))
    return node_filter_of(model.drivers.values()).is_relevant_change(NODE, after)


def driver(**spec: Any) -> Model:
    model = Model()
    model.apply_driver(**spec)
    return model


def test_a_label_that_nobody_asks_for_wakes_nobody() -> None:
    assert not wakes(driver(), **{NFD: "false"})
    assert not wakes(driver(), example__zone="a")


@pytest.mark.parametrize("key", [PCI, state_label("edu"), OSTREE_LABEL])
def test_a_label_that_decides_something_does(key: str) -> None:
    assert wakes(driver(), **{key: "changed"})


def test_so_does_a_label_that_a_selector_names_and_any_if_a_stage_may_name_it() -> None:
    selects = {"nodeSelector": {"example/zone": "a"}}
    stages = [{"name": "plugin", "manifests": "plugin"}]

    assert wakes(driver(hardware=selects), example__zone="a")
    assert not wakes(driver(hardware=selects), **{PCI: "false"}), "no Driver is for a PCI device"
    assert wakes(driver(stages=stages), example__zone="a")


def test_so_does_a_resource_that_a_stage_waits_for() -> None:
    wait = {"resource": {"name": "example.com/edu"}}
    waits = driver(stages=[{"name": "plugin", "manifests": "plugin", "waitFor": wait}])
    declares = driver(devices=[{"resource": "example.com/edu", "discover": {"count": 1}}])
    after = replace(NODE, allocatable={"example.com/edu": 1})
    more = replace(NODE, capacity={"example.com/edu": 1})
    other = replace(NODE, allocatable={"example.com/other": 1})
    for model in (waits, declares):
        assert node_filter_of(model.drivers.values()).is_relevant_change(NODE, after)
        assert node_filter_of(model.drivers.values()).is_relevant_change(NODE, more)
        assert not node_filter_of(model.drivers.values()).is_relevant_change(NODE, other)
    assert not node_filter_of(driver().drivers.values()).is_relevant_change(NODE, after)


def test_what_is_no_label_always_does() -> None:
    assert node_filter_of(()).is_relevant_change(NODE, replace(NODE, ready=True))
    assert node_filter_of(()).is_relevant_change(NODE, replace(NODE, boot_id="another"))


def test_a_node_is_kept_before_it_is_asked_who_reads_its_labels(tmp_path: Path) -> None:
    """Or a Driver that comes in between would not see the label that it asks for."""
    kept: list[object] = []
    with ScriptedServer() as server:
        view = ClusterCache(server.api(tmp_path), Settings(), lambda: None)
        nodes, drivers = view._reflectors["nodes"], view._reflectors["drivers"]
        objects = drivers.objects

        def asked() -> object:
            kept.append((nodes.objects() or {}).get("n0"))
            return objects()

        drivers.objects = asked  # type: ignore[assignment, method-assign]
        nodes._put_object(NODE, deleted=False)
        after = replace(NODE, labels=labels_of({**NODE.labels, "example/zone": "a"}))

        assert not nodes._put_object(after, deleted=False)

    assert kept == [after]
