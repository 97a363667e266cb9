"""Drivers whose stages have to end before a node changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nodeside.protocol.node_status import State
from tests.cluster.fakes.drains import step
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.stagedriver import TWO, up, with_stages

STUCK = "nodeside/plugin-n0"


def changing(count: int = 2, **spec: Any) -> Model:
    """Stages on every node, and the next version of the driver."""
    model = up(with_stages(count))
    rollout = {"maxUnavailable": "1", "canary": 1, **spec.pop("rollout", {})}
    model.apply_driver(stages=TWO, version="2.0.0", rollout=rollout, **spec)
    return model


def play(model: Model, *, stuck: bool) -> None:
    """What Kubernetes does; but a pod that is to end there does not."""
    assert model.stages is not None
    before, pod = model.stages.pods, "plugin-n0"
    model.play_stages()
    if stuck and pod in before and (pod not in model.stages.pods or before[pod].deleting):
        pods = {**model.stages.pods, pod: replace(before[pod], deleting=True)}
        model.stages = replace(model.stages, pods=pods)


def play_slowly(model: Model, *, stuck: bool) -> None:
    """The same, but every pod takes a round to end."""
    assert model.stages is not None
    before = model.stages.pods
    play(model, stuck=stuck)
    left = model.stages.pods
    ending = {
        name: replace(pod, deleting=True)
        for name, pod in before.items()
        if name not in left and not pod.deleting
    }
    model.stages = replace(model.stages, pods={**left, **ending})


def rounds(
    model: Model,
    now: float,
    count: int = 12,
    *,
    stuck: bool = True,
    kubernetes: Callable[..., None] = play,
    broken: str = "",
) -> list[str]:
    """Plans at one moment, with what Kubernetes and the nodes do about them. A node is `broken`."""
    said: list[str] = []
    for _ in range(count):
        before = {name: node.labels for name, node in model.nodes.items()}
        said += step(model, now)
        for name, node in model.nodes.items():
            if node.labels != before[name]:
                model.change(name, labelled=now)  # as managedFields has it
        kubernetes(model, stuck=stuck)
        model.report_all()
        if broken:
            model.report(broken, State.FAILED)
    return said
