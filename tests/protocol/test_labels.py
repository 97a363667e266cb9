"""Keys of labels and names of objects, as Kubernetes takes them."""

from __future__ import annotations

import pytest

from nodeside.protocol.labels import (
    LABEL_VALUE,
    assigned_label,
    driver_of_feature,
    feature_prefix,
    node_driver_name,
    parse_node_driver_name,
    state_label,
)
from nodeside.protocol.node_status import State
from nodeside.spec import check_labels

LONGEST_NAME = "a" * 40


@pytest.mark.parametrize("state", State)
def test_labels_of_the_longest_driver_name_are_labels(state: State) -> None:
    labels = {state_label(LONGEST_NAME): state.value, assigned_label(LONGEST_NAME): "0" * 10}
    assert check_labels(labels) == []
    assert LABEL_VALUE.fullmatch(state.value)


def test_a_node_driver_is_named_by_driver_and_node() -> None:
    assert node_driver_name("edu", "worker-1") == "edu.worker-1"
    assert parse_node_driver_name("edu.worker-1.example") == ("edu", "worker-1.example")
    assert parse_node_driver_name("edu") == ("edu", "")


def test_a_feature_label_names_its_driver() -> None:
    assert driver_of_feature(f"{feature_prefix('edu')}a.b") == "edu"
    assert driver_of_feature(state_label("edu")) == ""
