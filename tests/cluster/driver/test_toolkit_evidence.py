"""For which kernel a toolkit image is, by its labels."""

from __future__ import annotations

import pytest

from cluster.driver.toolkit_image import Evidence, labels_fit_pool
from cluster.model.parse import toolkit_labels_from
from cluster.model.snapshot import Pool, ToolkitLabels

KERNEL = "5.14.0-427.50.1.el9_4.x86_64"
POOL = Pool("x86_64", "418.94.202501221327-0", KERNEL)
ARM = "5.14.0-427.50.1.el9_4.aarch64"
RT = Pool("x86_64", "418.94.202501221327-0", f"{KERNEL}+rt")
OLD_RT = Pool("x86_64", "49.84.202110081407-0", "4.18.0-305.19.1.rt7.91.el8_4.x86_64")
IMAGE = "quay.io/dtk@sha256:94"


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
    assert labels_fit_pool(labels, pool) is says
    assert Evidence({IMAGE: labels}).names_kernel_of(IMAGE, pool) is bool(says)
    assert bool(Evidence({IMAGE: labels}).objection_to(IMAGE, pool)) is (says is False)


def test_of_several_architectures_a_pool_has_the_labels_of_its_own() -> None:
    older = ToolkitLabels("5.14.0-427.49.1.el9_4.aarch64")
    both = ToolkitLabels(by_architecture={"x86_64": ToolkitLabels(KERNEL), "aarch64": older})
    evidence = Evidence({IMAGE: both})
    arm = Pool("aarch64", "418.94.202501221327-0", ARM)

    assert evidence.names_kernel_of(IMAGE, POOL)
    assert evidence.objection_to(IMAGE, POOL) == ""
    assert not evidence.names_kernel_of(IMAGE, arm)
    assert evidence.objection_to(IMAGE, arm) == f"its image is for kernel {older.kernel}"
    assert evidence.objection_to(IMAGE, Pool("s390x", "", KERNEL)) == ""


@pytest.mark.parametrize(
    "tag", [None, {"from": {"kind": "ImageStreamTag", "name": "driver-toolkit:latest"}}]
)
def test_a_tag_without_a_pull_spec_has_the_labels_of_the_image_that_it_shows(tag: object) -> None:
    labels = {"kernel-version": KERNEL}
    image = {"dockerImageReference": IMAGE, "dockerImageMetadata": {"Config": {"Labels": labels}}}

    assert toolkit_labels_from({"tag": tag, "image": image}, IMAGE) == ToolkitLabels(KERNEL)
    assert toolkit_labels_from({"tag": tag, "image": image}, "quay.io/dtk@sha256:95") is None


@pytest.mark.parametrize("label", ["4.18.0-" + "+a" * 10_000 + "!", "5" * 65, "5.14.0 el9"])
def test_a_label_that_is_no_release_counts_as_missing(label: str) -> None:
    labels = {"kernel-version": label, "kernel-rt-version": label}
    image = {"dockerImageMetadata": {"Config": {"Labels": labels}}}
    assert toolkit_labels_from({"tag": {}, "image": image}, "x") == ToolkitLabels()
