"""The labels of nodes: a mapping like any other, but small."""

from __future__ import annotations

import pytest

from cluster.model.labelmap import Labels, labels_of, with_changes

NFD = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{number}": "true" for number in range(3)}
OURS = "nodeside.io/edu.assigned"


def test_they_are_a_mapping_like_any_other() -> None:
    labels = labels_of({**NFD, OURS: "abc"})

    assert labels == {**NFD, OURS: "abc"}
    assert labels[OURS] == "abc"
    assert labels.get("example.com/none") is None
    assert labels.get("example.com/none", "") == ""
    assert OURS in labels
    assert "example.com/none" not in labels
    assert dict(labels) == {**NFD, OURS: "abc"}
    assert len(labels) == 4
    with pytest.raises(KeyError):
        labels["example.com/none"]


def test_an_empty_value_is_a_value() -> None:
    labels = labels_of({"node-role.kubernetes.io/worker": "", OURS: ""})

    assert labels["node-role.kubernetes.io/worker"] == ""
    assert labels.get(OURS, "none") == ""
    assert OURS in labels


def test_nodes_with_the_same_keys_share_them() -> None:
    one, other = (
        labels_of({**NFD, "kubernetes.io/hostname": "n0"}),
        labels_of({**NFD, "kubernetes.io/hostname": "n1", OURS: "abc"}),
    )

    assert one._keys is other._keys
    assert one != other
    assert one == labels_of({"kubernetes.io/hostname": "n0", **NFD}), "the order is no difference"


def test_labels_of_ours_come_and_go_and_the_rest_stays() -> None:
    labels = labels_of({**NFD, OURS: "abc"})

    after = with_changes(labels, {OURS: None, "nodeside.io/edu.before": "abc"})

    assert isinstance(after, Labels)
    assert after == {**NFD, "nodeside.io/edu.before": "abc"}
    assert labels == {**NFD, OURS: "abc"}, "not changed in place"
    theirs = {"example.com/zone": "a"}
    assert with_changes(labels, theirs) == {**NFD, OURS: "abc", **theirs}
