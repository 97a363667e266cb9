"""Keys of labels and names of objects, as Kubernetes takes them."""

from __future__ import annotations

import pytest

from nodeside.protocol.labels import LABEL_VALUE, assigned_label, node_driver_name, state_label
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
