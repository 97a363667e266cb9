"""Nodes that say nothing."""

from __future__ import annotations

from dataclasses import replace

from cluster.model.snapshot import DriverPod
from tests.cluster.fakes.model import Model

THEN = 1_800_000_000.0  # 2027-01-15T08:00:00Z


BUILD = 3600.0  # the default of build.timeoutSeconds


def assigned() -> Model:
    """Two nodes that were assigned at `THEN`, and whose DaemonSet was seen at once."""
    model = Model()
    model.add(["n0", "n1"], ready_since=THEN - 9999)
    model.apply_driver(rollout={"canary": 0})
    model.settle()
    touch(model, THEN)
    for name in model.nodes:
        model.change(name, labelled=THEN)
    return model


def touch(model: Model, then: float) -> str:
    """Its DaemonSet controller was at work; the name of the one DaemonSet."""
    [name] = model.daemonsets
    model.daemonsets[name] = replace(model.daemonsets[name], touched=then)
    return name


def with_pods(model: Model, created: float = THEN) -> None:
    [name] = model.daemonsets
    for node in model.nodes:
        pod = DriverPod(f"{name}-{node}", driver="edu", node=node, daemonset=name, created=created)
        model.pods[pod.name] = pod


def at(model: Model, now: float) -> tuple[str, str]:
    """Reason and message of Ready, once the plan of that moment was carried out."""
    model.carry_out(model.plan(now).actions)
    ready = model.condition("Ready")
    return ready["reason"], ready["message"]
