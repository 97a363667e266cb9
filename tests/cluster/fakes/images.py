"""Drivers with an image for each kernel."""

from __future__ import annotations

from typing import Any

from cluster.model.snapshot import DriverPod
from cluster.model.waiting import Waiting
from tests.cluster.fakes.model import Model

TEMPLATE = "registry.example.com/edu:{version}-{kernel}"


MISSING = Waiting("ErrImagePull", "manifest unknown")


def prebuilt(count: int = 3, now: float = 0.0, **spec: Any) -> Model:
    """Nodes that were given pods with an image for their kernel."""
    model = Model()
    model.add(f"n{number}" for number in range(count))
    usual = {"prebuilt": {"image": TEMPLATE}, "rollout": {"canary": 0}}
    model.apply_driver(**{**usual, **spec})
    model.carry_out(model.plan(now).actions)
    return model


def cannot_have_it(model: Model, node: str, why: Waiting = MISSING) -> None:
    """The kubelet of a node says that it cannot pull the image of the driver container."""
    found = model.serving(node)
    assert found is not None
    name = f"{found.name}-{node}"
    waiting = {"driver": why}
    pod = DriverPod(name, driver="edu", node=node, daemonset=found.name, waiting=waiting)
    model.pods[name] = pod
