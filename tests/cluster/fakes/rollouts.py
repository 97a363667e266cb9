"""Rollouts in which nodes go down."""

from __future__ import annotations

from tests.cluster.fakes.model import Model

THEN = 1_800_000_000.0


def changing(count: int = 4) -> Model:
    """A second version, and its canary n0 goes down with it."""
    model = Model()
    model.add(f"n{number}" for number in range(count))
    model.apply_driver()
    model.settle_ready()
    model.apply_driver(version="2")
    look(model, THEN)
    assert model.revision("n0") != model.revision("n1")
    go_down(model, "n0", THEN)
    return model


def go_down(model: Model, node: str, at: float) -> None:
    model.change(node, ready=False, ready_since=at)


def look(model: Model, now: float) -> None:
    for _ in range(10):
        actions = model.plan(now).actions
        if not actions:
            return
        model.carry_out(actions)
    raise AssertionError("not settled")


def newest(model: Model) -> list[str]:
    wanted = model.drivers["edu"].status["revision"]
    return [name for name in model.nodes if model.revision(name) == wanted]
