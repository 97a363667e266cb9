"""For which kernel a toolkit image is: what its labels say, and what nodes say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.evidence import (
    Evidence,
    fits,
    heard,
    note,
    read_refused,
    remembered,
    together,
    upheld,
)
from cluster.world import DaemonSetObject, Node, NodeDriverObject, Pool, ToolkitLabels

KERNEL = "5.14.0-427.50.1.el9_4.x86_64"
POOL = Pool("x86_64", "418.94.202501221327-0", KERNEL)
RT = Pool("x86_64", "418.94.202501221327-0", f"{KERNEL}+rt")
OLD_RT = Pool("x86_64", "49.84.202110081407-0", "4.18.0-305.19.1.rt7.91.el8_4.x86_64")
IMAGE = "quay.io/dtk@sha256:94"
NODE = Node("n0", architecture="x86_64", kernel=KERNEL)
REFUSED = NodeDriverObject(
    "edu.n0", "edu", "n0", "failed", kernel=KERNEL, toolkit=IMAGE, reason="NoHeaders",
    message="toolkit has headers for 5.14.0-1\nto repeat it: make",
)  # fmt: skip
WHY = "node n0 refuses it: toolkit has headers for 5.14.0-1"


@pytest.mark.parametrize(
    ("labels", "pool", "says"),
    [
        (ToolkitLabels(KERNEL), POOL, True),
        (ToolkitLabels("5.14.0-427.50.1.el9_4"), POOL, True),  # early ones lack the architecture
        (ToolkitLabels("5.14.0-427.49.1.el9_4.x86_64"), POOL, False),
        (ToolkitLabels("5.14.0-427.50.1.el9_4.aarch64"), POOL, None),  # an image for another one
        (ToolkitLabels(), POOL, None),
        (ToolkitLabels("unknown"), POOL, None),
        (ToolkitLabels(KERNEL, f"{KERNEL}+rt"), RT, True),
        (ToolkitLabels(KERNEL, KERNEL), RT, True),  # `+rt` is missing
        (ToolkitLabels(KERNEL, "5.14.0-427.49.1.el9_4.x86_64+rt"), RT, False),
        (ToolkitLabels(KERNEL), RT, None),
        (ToolkitLabels(KERNEL, "%{version}"), RT, None),
        (ToolkitLabels(KERNEL, OLD_RT.kernel), OLD_RT, True),
        (ToolkitLabels(KERNEL), Pool("x86_64", "", f"{KERNEL}+64k"), None),
        (ToolkitLabels(KERNEL), Pool("x86_64", "", "(none named)"), None),
    ],
)
def test_labels_tell_the_kernel_as_far_as_they_can_be_read(
    labels: ToolkitLabels, pool: Pool, says: bool | None
) -> None:
    assert fits(labels, pool) is says
    assert Evidence({IMAGE: labels}).speaks_for(IMAGE, pool) is bool(says)
    assert bool(Evidence({IMAGE: labels}).against(IMAGE, pool)) is (says is False)


def test_what_a_node_refuses_is_refused_for_its_kernel_alone() -> None:
    assert heard([(NODE, REFUSED)]) == {(KERNEL, "x86_64"): {IMAGE: WHY}}
    assert not heard([(replace(NODE, kernel="5.14.0-1.el9.x86_64"), REFUSED)])


@pytest.mark.parametrize(
    "said",
    [
        NodeDriverObject("edu.n0", state="failed", kernel=KERNEL, toolkit=IMAGE, reason="Compile"),
        NodeDriverObject("edu.n0", state="failed", kernel=KERNEL, reason="NoHeaders"),
        NodeDriverObject("edu.n0", state="building", kernel=KERNEL, toolkit=IMAGE),
        NodeDriverObject(
            "edu.n0", state="failed", kernel=KERNEL, toolkit=IMAGE, reason="KernelChanged"
        ),
    ],
)
def test_other_failures_are_not_the_toolkits(said: NodeDriverObject) -> None:
    assert not heard([(NODE, said)])


def test_what_a_daemonset_notes_keeps_its_words() -> None:
    noted = DaemonSetObject("edu-1", pool=POOL, refused={IMAGE: "node n7 refuses it: no"})

    found = together(remembered([noted]), heard([(NODE, REFUSED)]))

    assert found == {(KERNEL, "x86_64"): {IMAGE: "node n7 refuses it: no"}}


def test_an_image_that_has_built_after_all_is_not_refused() -> None:
    built = NodeDriverObject("edu.n1", state="ready", source="built", kernel=KERNEL, toolkit=IMAGE)
    found = heard([(NODE, REFUSED)])

    assert upheld(found, [(NODE, built)]) == {(KERNEL, "x86_64"): {}}
    other = NodeDriverObject("edu.n1", state="ready", source="loaded", kernel=KERNEL, toolkit=IMAGE)
    assert upheld(found, [(NODE, other)]) == found


def test_an_empty_reason_is_one_all_the_same() -> None:
    evidence = Evidence({IMAGE: ToolkitLabels(KERNEL)}, {IMAGE: ""})

    assert evidence.against(IMAGE, POOL) == "it was refused"
    assert not evidence.speaks_for(IMAGE, POOL)


def test_no_more_is_noted_than_an_annotation_should_hold() -> None:
    assert len(read_refused(note({f"quay.io/dtk:{i:03}": WHY for i in range(100)}))) == 64


def test_a_note_is_read_as_it_was_written_and_junk_is_nothing() -> None:
    assert read_refused(note({IMAGE: WHY})) == {IMAGE: WHY}
    assert note({}) == ""
    for junk in ("", "[]", "{", '"x"', "[" * 10_000):
        assert read_refused(junk) == {}
