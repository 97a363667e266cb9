"""Drivers whose nodes are emptied before they change."""

from __future__ import annotations

from typing import Any

from cluster.model.actions import Cordon, EvictPod, LabelNode, Uncordon
from cluster.model.names import CORDONED, draining_label, undrained_label
from tests.cluster.fakes.model import Model

EVICT = {"resources": ["example.com/edu"]}


def rolling(count: int = 3, evict: dict[str, Any] | None = None, **rollout: Any) -> Model:
    """A driver that works everywhere, and the next version, which evicts."""
    model = Model()
    model.add(f"n{number}" for number in range(count))
    model.apply_driver()
    model.settle_ready()
    model.apply_driver(version="2.0.0", rollout={**rollout, "evict": evict or EVICT})
    return model


def step(model: Model, now: float = 0.0) -> list[str]:
    """One plan, carried out; what it did to nodes and their pods."""
    actions = model.plan(now).actions
    model.carry_out(actions)
    return [a.words for a in actions if isinstance(a, Cordon | Uncordon | EvictPod | LabelNode)]


def held(model: Model, driver: str = "edu") -> set[str]:
    key = draining_label(driver)
    return {name for name, node in model.nodes.items() if key in node.labels}


def cordoned(model: Model) -> set[str]:
    return {name for name, node in model.nodes.items() if node.unschedulable}


def is_over(model: Model) -> bool:
    """Everybody has the newest revision, and nobody is held or cordoned by us."""
    marks = (CORDONED, DRAINING, UNDRAINED)
    return (
        model.drivers["edu"].status["nodes"]["updated"] == len(model.nodes)
        and model.condition("Ready")["status"] == "True"
        and not any(mark in node.labels for node in model.nodes.values() for mark in marks)
    )


DRAINING, UNDRAINED = draining_label("edu"), undrained_label("edu")
