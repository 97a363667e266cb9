"""A Driver with stages in the model: its ConfigMaps, and the rounds that bring it up."""

from __future__ import annotations

from typing import Any

from cluster.model.actions import LabelNode
from cluster.model.names import closed_label, stage_label
from nodeside.protocol.labels import state_label
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model

STATE = state_label("edu")
CLOSED = closed_label("edu")
FIRST, SECOND = stage_label("edu", "first"), stage_label("edu", "second")
TWO = [{"name": "first", "manifests": "one"}, {"name": "second", "manifests": "two"}]

DAEMONSET = """
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {name}
spec:
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
      containers:
        - name: main
          image: registry.example.com/{name}:1
          resources: {{requests: {{cpu: 0.1, memory: 1024Mi}}}}
"""


def daemonset(name: str) -> str:
    return DAEMONSET.format(name=name)


def with_stages(count: int = 2, stages: Any = TWO, **spec: Any) -> Model:
    """Nodes, a Driver with two stages, and nothing done yet."""
    model = Model()
    model.config_map("one", ds_yaml=daemonset("plugin"))
    model.config_map("two", ds_yaml=daemonset("monitor"))
    model.add(f"n{number}" for number in range(count))
    model.apply_driver(stages=stages, **spec)
    return model


def speak(model: Model, name: str, state: State = State.READY) -> None:
    """What a node says, if it has a pod that can: its NodeDriver and its label."""
    if model.serving(name):
        model.report(name, state)
        model.relabel(name, {STATE: state.value})


def round_(model: Model) -> tuple[Any, ...]:
    """A plan, what Kubernetes does about it, and its actions."""
    actions = model.plan().actions
    model.carry_out(actions)
    return actions


def up(model: Model, rounds: int = 20) -> Model:
    """Until nothing is left to do: every node speaks, every pod starts."""
    for _ in range(rounds):
        for name in model.nodes:
            speak(model, name)
        model.play_stages()
        if not round_(model):
            return model
    raise AssertionError("not settled")


def patches(actions: tuple[Any, ...], node: str) -> list[Any]:
    """What is changed of the labels of a node."""
    return [dict(a.labels) for a in actions if isinstance(a, LabelNode) and a.node == node]


def row(model: Model, stage: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = model.drivers["edu"].status["stages"]
    return next(each for each in rows if each["name"] == stage)


def objects(model: Model) -> set[str]:
    assert model.stages is not None
    return {f"{kind} {name}" for kind, name in model.stages.objects}


def pods(model: Model) -> set[str]:
    assert model.stages is not None
    return set(model.stages.pods)
