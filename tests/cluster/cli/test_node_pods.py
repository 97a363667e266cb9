"""What is known of a node's pods besides the node's own reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from cluster.cli import node_pods
from cluster.cli.explain import explain_node
from cluster.kube.client import Api
from cluster.kube.errors import Forbidden
from cluster.kube.listing import Page
from cluster.kube.resources import Resource
from cluster.model.snapshot import DriverPod
from cluster.model.waiting import Waiting
from tests.cluster.fakes.model import Model

NOW = 1_700_000_000.0
PULLING = {"lastTimestamp": "2023-11-14T22:12:45Z", "message": "Pulling\x1b[2J\nblocks nothing"}


class FakeServer:
    def __init__(self, *objects: dict[str, Any], refuses: bool = False) -> None:
        self.objects, self.refuses = objects, refuses

    def now(self) -> float:
        return NOW

    def list(
        self, resource: Resource, trim: Callable[[dict[str, Any]], Any], **selection: str
    ) -> Page[Any]:
        if self.refuses:
            raise Forbidden(f"may not list {resource.plural}")
        return Page([made for each in self.objects if (made := trim(each)) is not None])


def events(server: FakeServer, model: Model) -> str:
    model.pods["p"] = DriverPod("p", driver="edu", node="n1", created=-1.0)
    snapshot = model.snapshot
    found = node_pods.newest_events(cast("Api", server), snapshot, "edu", snapshot.nodes["n1"])
    there = explain_node(snapshot, "edu", "n1", found).there
    [line] = [line for line in there if line.startswith("pod p")]
    return line


@pytest.fixture
def ready() -> Model:
    made = Model()
    made.add(["n1"])
    made.apply_driver()
    made.settle_ready()
    return made


def test_the_event_of_a_pod_that_is_not_ready_is_one_line(ready: Model) -> None:
    assert events(FakeServer(PULLING), ready) == "pod p", "the node has said that it is ready"

    ready.reboot("n1")

    line = events(FakeServer(PULLING), ready)
    assert line.startswith("pod p: Pulling")
    assert line.endswith("(35s ago)")
    assert line.isprintable()


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"metadata": [1], "message": None},
        {"lastTimestamp": "yesterday", "message": "x"},
        {"eventTime": 7, "involvedObject": "none"},
    ],
)
def test_events_that_are_none_are_passed_over(ready: Model, event: dict[str, Any]) -> None:
    ready.reboot("n1")

    assert events(FakeServer(event), ready) == "pod p"
    assert events(FakeServer(event, PULLING), ready).endswith("(35s ago)")


def test_an_event_follows_what_the_pod_waits_for(ready: Model) -> None:
    ready.reboot("n1")
    waiting = {"driver": Waiting("ErrImagePull", "not found")}
    pod = DriverPod("q", driver="edu", node="n1", created=-1.0, deleting=True, waiting=waiting)

    ready.pods["q"] = pod
    there = explain_node(ready.snapshot, "edu", "n1", {"q": "Pulling (3s ago)"}).there

    assert "pod q (ending): driver: ErrImagePull: not found; Pulling (3s ago)" in there


def test_without_the_right_to_look_the_lines_stay(ready: Model) -> None:
    ready.reboot("n1")
    refused = FakeServer(refuses=True)

    assert events(refused, ready) == "pod p"
    line = "held by python3 (pid 7, pod 0123abcd…)"
    assert node_pods.with_names(cast("Api", refused), "n1", [line]) == (line,)


def test_a_pod_without_a_name_takes_nobodys_place() -> None:
    line = "held by python3 (pid 7, pod 0123abcd…)"
    odd = FakeServer({}, {"metadata": {"uid": "ffffffff-0"}})

    assert node_pods.with_names(cast("Api", odd), "n1", [line]) == (line,)
