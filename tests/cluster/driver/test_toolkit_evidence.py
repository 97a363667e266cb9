"""For which kernel a toolkit image is: what its labels say, and what nodes say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.driver.toolkit_evidence import (
    Evidence,
    Witness,
    fits,
    heard,
    lasting,
    remembered,
    together,
    upheld,
)
from cluster.model.annotations import decode_refusals, encode_refusals
from cluster.model.parse import toolkit_labels_from
from cluster.model.snapshot import DaemonSetObject, Node, NodeReport, Pool, ToolkitLabels

KERNEL = "5.14.0-427.50.1.el9_4.x86_64"
POOL = Pool("x86_64", "418.94.202501221327-0", KERNEL)
ARM = "5.14.0-427.50.1.el9_4.aarch64"
RT = Pool("x86_64", "418.94.202501221327-0", f"{KERNEL}+rt")
OLD_RT = Pool("x86_64", "49.84.202110081407-0", "4.18.0-305.19.1.rt7.91.el8_4.x86_64")
IMAGE = "quay.io/dtk@sha256:94"
NODE = Node("n0", architecture="x86_64", kernel=KERNEL)
REFUSED = NodeReport(
    "edu.n0", "edu", "n0", "failed", kernel=KERNEL, toolkit=IMAGE, reason="NoHeaders",
    message="toolkit has headers for 5.14.0-1\nto repeat it: make",
)  # fmt: skip
WHY = "node n0 refuses it: toolkit has headers for 5.14.0-1"
BUILT = NodeReport("edu.n0", state="ready", source="built", kernel=KERNEL, toolkit=IMAGE)


def saying(word: NodeReport | None, name: str = "n0", image: str = IMAGE) -> Witness:
    return Witness(replace(NODE, name=name), image, word)


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
        (ToolkitLabels(ARM), Pool("aarch64", "", f"{ARM}+64k"), True),
        (ToolkitLabels(ARM), Pool("aarch64", "", "5.14.0-427.49.1.el9_4.aarch64+64k"), False),
        (ToolkitLabels(KERNEL), Pool("x86_64", "", f"{KERNEL}+debug"), None),
        (ToolkitLabels(KERNEL), Pool("x86_64", "", "5.14.0-427.49.1.el9_4.x86_64+debug"), False),
        (ToolkitLabels(ARM), Pool("aarch64", "", f"{ARM}+64k-debug"), None),
        (ToolkitLabels(ARM), Pool("aarch64", "", "5.14.0-1.el9.aarch64+64k-debug"), False),
        (ToolkitLabels(KERNEL, f"{KERNEL}+rt"), Pool("x86_64", "", f"{KERNEL}+rt-debug"), None),
        (ToolkitLabels("5.14.0-1.el9.x86_64", KERNEL), RT, True),
        (
            ToolkitLabels(KERNEL, "5.14.0-1.el9.x86_64+rt"),
            Pool("x86_64", "", f"{KERNEL}+rt-debug"),
            False,
        ),
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
    assert heard([saying(REFUSED)]) == {(KERNEL, "x86_64"): {IMAGE: WHY}}
    elsewhere = replace(NODE, kernel="5.14.0-1.el9.x86_64")
    assert not heard([Witness(elsewhere, IMAGE, REFUSED)])


def test_an_image_that_no_node_has_is_refused_by_most_of_all_or_by_none() -> None:
    others = [saying(None, "n1", "quay.io/dtk:given"), saying(BUILT, "n2", "quay.io/dtk:given")]
    refusing = [saying(REFUSED, f"r{i}", "quay.io/dtk:given") for i in range(3)]

    assert not heard([*refusing[:2], *others])
    assert heard([*refusing, *others])


def test_of_an_image_those_speak_who_have_it() -> None:
    elsewhere = [saying(REFUSED, f"r{i}", "quay.io/dtk:given") for i in range(3)]

    assert not heard([*elsewhere, saying(BUILT)])


@pytest.mark.parametrize(
    ("refusing", "others", "believed"), [(1, 0, True), (1, 1, False), (2, 1, True), (2, 2, False)]
)
def test_most_of_those_who_have_an_image_speak_for_all(
    refusing: int, others: int, believed: bool
) -> None:
    nodes = [saying(REFUSED, f"r{i}") for i in range(refusing)]

    for word in (None, BUILT, replace(BUILT, source="loaded")):
        silent = [saying(word, f"s{i}") for i in range(others)]
        assert bool(heard([*nodes, *silent])) is believed


def test_who_still_works_with_another_image_has_not_tried_this_one() -> None:
    other = replace(BUILT, toolkit="quay.io/dtk:of-before")

    assert heard([saying(REFUSED), saying(other, "n1"), saying(other, "n2")])


def test_what_nodes_say_at_length_is_noted_as_far_as_there_is_room() -> None:
    long = {f"{i}-" + "\U0001f600" * 1000: "node n0 refuses it: no" for i in range(40)}
    many = {"quay.io/dtk:wrong": "9 nodes refuse it, n0 among them: no"}

    kept = encode_refusals(long | many)

    assert len(kept) < 100_000
    assert "quay.io/dtk:wrong" in decode_refusals(kept), "what most refuse comes first"


def test_a_refusal_of_few_lasts_while_they_are_most_of_those_there() -> None:
    few = {IMAGE: "node n0 refuses it: no"}
    assert lasting(few, 1) == few
    assert lasting(few, 2) == {}
    some = {IMAGE: "3 nodes refuse it, n0 among them: no"}
    assert lasting(some, 5) == some
    assert lasting(some, 6) == {}
    enough = {IMAGE: "16 nodes refuse it, n0 among them: no"}
    assert lasting(enough, 5000) == enough


@pytest.mark.parametrize(
    "said",
    [
        NodeReport("edu.n0", state="failed", kernel=KERNEL, toolkit=IMAGE, reason="Compile"),
        NodeReport("edu.n0", state="failed", kernel=KERNEL, reason="NoHeaders"),
        NodeReport("edu.n0", state="building", kernel=KERNEL, toolkit=IMAGE),
        NodeReport("edu.n0", state="failed", kernel=KERNEL, toolkit=IMAGE, reason="KernelChanged"),
    ],
)
def test_other_failures_are_not_the_toolkits(said: NodeReport) -> None:
    assert not heard([saying(said)])


def test_what_a_daemonset_notes_keeps_its_words() -> None:
    noted = DaemonSetObject("edu-1", pool=POOL, refused={IMAGE: "node n7 refuses it: no"})

    found = together(remembered([noted]), heard([saying(REFUSED)]))

    assert found == {(KERNEL, "x86_64"): {IMAGE: "node n7 refuses it: no"}}
    twice = heard([saying(REFUSED), saying(REFUSED, "n1")])
    assert together(remembered([noted]), twice) == twice


def test_an_image_that_has_built_after_all_is_not_refused() -> None:
    found = heard([saying(REFUSED)])

    assert upheld(found, [saying(BUILT)]) == {(KERNEL, "x86_64"): {}}
    assert upheld(found, [saying(replace(BUILT, source="loaded"))]) == found
    assert upheld(found, [saying(BUILT, image="quay.io/dtk:given")]) == found


def test_an_empty_reason_is_one_all_the_same() -> None:
    evidence = Evidence({IMAGE: ToolkitLabels(KERNEL)}, {IMAGE: ""})

    assert evidence.against(IMAGE, POOL) == "it was refused"
    assert not evidence.speaks_for(IMAGE, POOL)


def test_no_more_is_noted_than_an_annotation_should_hold() -> None:
    assert (
        len(decode_refusals(encode_refusals({f"quay.io/dtk:{i:03}": WHY for i in range(100)})))
        == 64
    )


def test_a_note_is_read_as_it_was_written_and_junk_is_nothing() -> None:
    assert decode_refusals(encode_refusals({IMAGE: WHY})) == {IMAGE: WHY}
    assert encode_refusals({}) == ""
    for junk in ("", "[]", "{", '"x"', "[" * 10_000, encode_refusals({"i" * 1025: WHY})):
        assert decode_refusals(junk) == {}


@pytest.mark.parametrize("label", ["4.18.0-" + "+a" * 10_000 + "!", "5" * 65, "5.14.0 el9"])
def test_a_label_that_is_no_release_counts_as_missing(label: str) -> None:
    labels = {"kernel-version": label, "kernel-rt-version": label}
    image = {"dockerImageMetadata": {"Config": {"Labels": labels}}}
    assert toolkit_labels_from({"tag": {}, "image": image}, "x") == ToolkitLabels()
