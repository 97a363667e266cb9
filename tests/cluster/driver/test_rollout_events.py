"""An Event tells when a rollout begins; that it is complete, Ready tells."""

from __future__ import annotations

from tests.cluster.fakes.model import Model


def told(model: Model) -> list[tuple[str, str]]:
    """Reason and words of each Event since the last call."""
    events = [(event.reason, event.note) for event in model.said]
    model.said.clear()
    return events


def rolled_out() -> Model:
    model = Model()
    model.add(["n1", "n2"])
    model.apply_driver()
    model.settle_ready()
    return model


def test_a_rollout_is_told_when_it_begins_and_when_it_is_complete() -> None:
    model = rolled_out()
    first = model.revision("n1")
    assert told(model) == [
        (
            "RolloutStarted",
            f"rollout of 1.0.0 ({first}) to 2 nodes: canary 1, maxUnavailable 1, maxFailed 10%",
        ),
        ("Ready", "works on 2 nodes"),
    ]

    model.apply_driver(version="2.0.0")
    model.settle()
    assert [reason for reason, _ in told(model)] == ["RolloutStarted"]
    model.report_all()
    model.settle_ready()
    assert told(model) == [("Ready", "works on 2 nodes")]

    model.reboot("n1")
    model.settle()
    model.settle_ready()
    assert "RolloutStarted" not in dict(told(model)), "a node that reboots is no rollout"


def test_going_back_to_what_worked_is_told_as_that() -> None:
    model = rolled_out()
    model.apply_driver(version="2.0.0")
    model.settle()
    told(model)

    model.apply_driver()
    model.settle_ready()

    (reason, note), *_ = told(model)
    assert reason == "RolloutStarted"
    assert note == f"back to 1.0.0 ({model.revision('n1')}), which worked: 2 nodes"


def test_a_paused_rollout_begins_when_it_goes_on() -> None:
    model = rolled_out()
    told(model)
    model.apply_driver(version="2.0.0", rollout={"paused": True})
    model.settle()
    assert "RolloutStarted" not in dict(told(model))

    model.apply_driver(version="2.0.0")
    model.settle()

    assert [reason for reason, _ in told(model)] == ["RolloutStarted"]
    model.report_all()
    model.settle_ready()
    assert "RolloutStarted" not in dict(told(model)), "once"


def test_a_driver_without_nodes_rolls_nothing_out() -> None:
    model = Model()
    model.apply_driver()
    model.settle()
    assert told(model) == []

    model.add(["n1"])
    model.settle()
    assert [reason for reason, _ in told(model)] == ["RolloutStarted"]
