"""A controller that starts where all is as it should be: it writes nothing and accuses nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from cluster.cache.cache import ClusterCache, read_once
from cluster.cli.explain import explain
from cluster.kube.client import Api
from cluster.kube.election import Leadership
from cluster.kube.wakeup import Wakeup
from cluster.model.actions import Action
from cluster.model.snapshot import Settings
from cluster.model.stages import Template
from cluster.plan.planner import Planner
from cluster.reconcile.executor import Executor
from cluster.reconcile.loop import Controller, ReconcileResult
from cluster.reconcile.timings import LoopTimings
from tests.cluster.fakes.loop import LONG
from tests.cluster.fakes.recording import Recording, lease
from tests.cluster.fakes.scripted import ScriptedServer
from tests.cluster.fakes.stagedriver import TWO, daemonset, up
from tests.cluster.fakes.stored import StoredObjects

ABSENT = ("image.openshift.io", "config.openshift.io")
BOARD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: board}
spec:
  selector: {matchLabels: {app: board}}
  template:
    metadata: {labels: {app: board}}
    spec: {containers: [{name: main, image: registry.example.com/board:1}]}
---
apiVersion: v1
kind: Service
metadata: {name: board}
spec: {selector: {app: board}, ports: [{port: 80}]}
"""
DEVICES = [{"resource": "example.com/edu", "discover": {"pci": [{"vendor": "1234"}]}}]


def settled() -> Recording:
    """Two stages of manifests, then that of the devices, ready on two nodes."""
    model = Recording(settings=Settings(agent_image="registry.example.com/agent:1"))
    model.config_map("one", ds_yaml=daemonset("plugin"), board_yaml=BOARD)
    model.config_map("two", ds_yaml=daemonset("monitor"))
    model.add(["n0", "n1"])
    model.rolled_out.add("board")
    model.apply_driver(stages=TWO, devices=DEVICES)
    up(model)
    assert model.condition("StagesReady")["status"] == "True"
    return model


@pytest.fixture(scope="module")
def cluster() -> Recording:
    return settled()


class PatientView(ClusterCache):
    """It waits for templates for as long as a slow machine takes to render them."""

    def render_templates(self, templates: Collection[Template]) -> bool:
        return self._stages._renderings.keep_templates(templates, LONG)


def lead(api: Api, cluster: Recording) -> list[tuple[Action, ...]]:
    """What the rounds of a new leader plan, until it has seen the stages too."""
    plans: list[tuple[Action, ...]] = []
    stopping, wakes = threading.Event(), Wakeup()

    def after(round_: ReconcileResult) -> None:
        plans.append(round_.plan.actions)
        stages = round_.snapshot.stages
        if stages and not stages.unknown and set(round_.plan.templates) <= set(stages.rendered):
            stopping.set()

    leadership = Leadership()
    leadership.begin(time.monotonic() + LONG)
    with (
        Executor(api, instance="second", wall=lambda: 60.0) as executor,
        PatientView(api, cluster.settings, wakes.wake) as view,
    ):
        controller = Controller(
            view, wakes, executor, Planner(), stopping=stopping, pace=LoopTimings(), after=after,
            wall=lambda: 60.0,
        )  # fmt: skip
        controller.work_as_leader(leadership)
    assert stopping.is_set(), "the stages were never seen"
    return plans


def test_what_is_read_of_the_cluster_is_what_was_applied_to_it(
    cluster: Recording, tmp_path: Path
) -> None:
    with ScriptedServer() as server:
        server.always = StoredObjects(cluster.documents(), absent=ABSENT).answer
        found = read_once(server.api(tmp_path), cluster.settings)

    assert found.stages is not None
    known = cluster.snapshot.stages
    assert known is not None
    ours: dict[Any, Any] = {key: each for key, each in found.stages.objects.items() if each.stage}
    assert {key: each.document for key, each in ours.items()} == {
        key: each.document for key, each in known.objects.items()
    }
    assert found.stages.pods == known.pods


@pytest.mark.slow
def test_a_second_controller_plans_nothing_and_publishes_no_event(
    cluster: Recording, tmp_path: Path
) -> None:
    stored = StoredObjects(cluster.documents(), absent=ABSENT)
    with ScriptedServer() as server:
        server.always = stored.answer
        plans = lead(server.api(tmp_path), cluster)

    assert [action.words for actions in plans for action in actions] == []
    assert stored.written == []


@pytest.mark.slow
def test_explain_names_no_next_step(cluster: Recording, tmp_path: Path) -> None:
    stored = StoredObjects([*cluster.documents(), lease("first")], absent=ABSENT)
    with ScriptedServer() as server:
        server.always = stored.answer
        said = explain(server.api(tmp_path), cluster.settings, "edu")
        on_node = explain(server.api(tmp_path), cluster.settings, "edu", "n0")

    assert said.next == said.blocks == ()
    assert "next    nothing: it is as it should be" in said.text()
    assert on_node.next == on_node.blocks == ()
