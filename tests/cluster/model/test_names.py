"""Names that are built of a Driver's are read back by the function beside the one that builds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.model.names import (
    CORDONED,
    assignment_of,
    before_label,
    closed_label,
    daemonset_name,
    draining_label,
    driver_of_draining,
    driver_of_label,
    stage_label,
    undrained_label,
)
from nodeside.protocol.labels import assigned_label, state_label

DRIVER = "edu-2"


@pytest.mark.parametrize(
    "label",
    [
        *(assigned_label, before_label, closed_label, draining_label, state_label),
        undrained_label,
        lambda driver: stage_label(driver, "first"),
    ],
)
def test_a_label_of_a_driver_names_it(label: Callable[[str], str]) -> None:
    assert driver_of_label(label(DRIVER)) == DRIVER


@pytest.mark.parametrize("key", [CORDONED, "example.com/edu.state", "nodeside.io/edu.other"])
def test_another_label_names_no_driver(key: str) -> None:
    assert driver_of_label(key) == ""


def test_a_label_of_a_drain_names_who_drains() -> None:
    assert driver_of_draining(draining_label(DRIVER)) == DRIVER
    assert driver_of_draining(undrained_label(DRIVER)) == ""


def test_a_daemonset_names_the_assignment_that_it_serves() -> None:
    assert assignment_of(daemonset_name(DRIVER, "0123456789ab")) == "0123456789ab"
