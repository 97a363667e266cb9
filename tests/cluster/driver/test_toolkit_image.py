"""Where a toolkit image comes from."""

from __future__ import annotations

from cluster.driver.toolkit_image import (
    CurrentImage,
    Evidence,
    Link,
    Resolution,
    fill_template,
    resolve_toolkit_image,
    tags_to_read,
)
from cluster.model.snapshot import ImageStream, NotListed, Pool, Tag, ToolkitLabels
from nodeside.spec.fleet import Toolkit

KERNEL = "5.14.0-427.50.1.el9_4.x86_64"
POOL = Pool("x86_64", "418.94.202501221327-0", KERNEL)
NAME = "openshift/driver-toolkit"
STREAMS = {
    NAME: ImageStream(
        NAME, {"latest": "quay.io/dtk@sha256:00", "418.94.202501221327-0": "quay.io/dtk@sha256:94"}
    )
}


def test_the_tag_of_the_nodes_os_version_is_the_toolkit() -> None:
    found = resolve_toolkit_image(POOL, Toolkit(), STREAMS)

    assert (found.image, found.link) == ("quay.io/dtk@sha256:94", Link.STREAM)
    assert "has tag 418.94.202501221327-0" in found.why


def test_what_somebody_wrote_for_this_kernel_comes_first() -> None:
    found = resolve_toolkit_image(POOL, Toolkit(images={KERNEL: "example.com/toolkit:1"}), STREAMS)

    assert (found.image, found.link) == ("example.com/toolkit:1", Link.MAP)


def test_without_a_tag_the_template_is_filled_in() -> None:
    other = Pool("x86_64", "debian12", "6.12.107+deb12-amd64")
    toolkit = Toolkit(image_template="example.com/{osVersion}/{arch}:{kernel}")

    found = resolve_toolkit_image(other, toolkit, STREAMS)

    assert found.image == "example.com/debian12/x86_64:6.12.107_deb12-amd64"
    assert found.link is Link.TEMPLATE
    assert "has no tag debian12" in found.why


def test_a_tag_that_vanishes_changes_nothing_where_it_is_used() -> None:
    gone = {NAME: ImageStream(NAME, {"latest": "quay.io/dtk@sha256:00"})}

    found = resolve_toolkit_image(
        POOL, Toolkit(), gone, current=CurrentImage("quay.io/dtk@sha256:94", "image-stream")
    )

    assert (found.image, found.link) == ("quay.io/dtk@sha256:94", Link.KEPT)


def test_with_nothing_it_says_what_was_looked_at_and_which_tags_there_are() -> None:
    other = Pool("aarch64", "418.94.202502020000-0", KERNEL)

    found = resolve_toolkit_image(other, Toolkit(), STREAMS)

    assert found == Resolution(
        "",
        Link.NONE,
        "image stream openshift/driver-toolkit has no tag 418.94.202502020000-0",
        ("latest", "418.94.202501221327-0"),
        "wait for the tag, or name an image in spec.toolkit.images",
    )


def test_who_asks_for_a_kernel_alone_is_not_told_to_wait_for_a_tag_that_is_there() -> None:
    """Which tag is the kernel's, only labels can tell; the OS version would tell as well."""
    found = resolve_toolkit_image(Pool("x86_64", "", KERNEL), Toolkit(), STREAMS)

    assert found.why == f"no tag of image stream {NAME} is known to be for {KERNEL}"
    assert found.remedy == (
        "give the OS version instead of the kernel, or name an image in spec.toolkit.images"
    )
    assert found.tags_seen == ("latest", "418.94.202501221327-0")


def test_of_what_nobody_set_up_it_says_nothing() -> None:
    other = Pool("aarch64", "418.94.202502020000-0", KERNEL)

    found = resolve_toolkit_image(other, Toolkit(images={"6.1.0": "example.com/toolkit:1"}), None)

    assert found.why == (
        f"toolkit.images does not name kernel {KERNEL}; this cluster has no image streams"
    )
    assert found.remedy == (
        "name an image in spec.toolkit.images, or set spec.toolkit.imageTemplate"
    )


def test_a_cluster_without_image_streams_says_so() -> None:
    assert "this cluster has no image streams" in resolve_toolkit_image(POOL, Toolkit(), None).why
    assert (
        "there is no image stream openshift/driver-toolkit"
        in resolve_toolkit_image(POOL, Toolkit(), {}).why
    )


OTHER = "5.14.0-427.49.1.el9_4.x86_64"
TAG, OLDER, NEWER = "418.94.202501221327-0", "418.94.202501011200-0", "418.94.202502020000-0"
EXACT, SECOND, THIRD = "quay.io/dtk@sha256:94", "quay.io/dtk@sha256:93", "quay.io/dtk@sha256:95"
SEVERAL = {NAME: ImageStream(NAME, {TAG: EXACT, OLDER: SECOND, NEWER: THIRD})}
DRIFTED = Evidence(
    {EXACT: ToolkitLabels(OTHER), SECOND: ToolkitLabels(KERNEL), THIRD: ToolkitLabels(KERNEL)}
)


def test_a_tag_whose_image_is_for_another_kernel_gives_way_to_one_for_this() -> None:
    found = resolve_toolkit_image(POOL, Toolkit(), SEVERAL, DRIFTED)

    assert (found.image, found.link) == (THIRD, Link.LABELS)
    assert found.why == (
        f"tag {NEWER} of image stream {NAME} is for {KERNEL}; "
        f"image stream {NAME} has tag {TAG}, but its image is for kernel {OTHER}"
    )


def test_without_the_tag_one_for_this_kernel_serves_and_goes_on_serving() -> None:
    without = {NAME: ImageStream(NAME, {OLDER: SECOND, NEWER: THIRD})}

    assert resolve_toolkit_image(POOL, Toolkit(), without, DRIFTED).image == THIRD
    used = CurrentImage(SECOND, Link.LABELS.value)
    found = resolve_toolkit_image(POOL, Toolkit(), without, DRIFTED, used)
    assert (found.image, found.link) == (SECOND, Link.LABELS)
    # Whoever leads next has not read the labels yet.
    found = resolve_toolkit_image(POOL, Toolkit(), without, current=used)
    assert (found.image, found.link) == (SECOND, Link.LABELS)


def test_what_labels_chose_stays_until_those_of_a_tag_that_comes_are_read() -> None:
    used = CurrentImage(THIRD, Link.LABELS.value)

    found = resolve_toolkit_image(POOL, Toolkit(), SEVERAL, current=used)
    assert (found.image, found.link) == (THIRD, Link.LABELS)

    read = Evidence({EXACT: ToolkitLabels(KERNEL)})
    assert resolve_toolkit_image(POOL, Toolkit(), SEVERAL, read, used).link is Link.STREAM


def test_what_took_the_place_of_a_wrong_image_stays_while_its_labels_may_still_be_read() -> None:
    toolkit, filled = (
        Toolkit(image_template="example.com/toolkit:{kernel}"),
        CurrentImage(f"example.com/toolkit:{KERNEL}", Link.TEMPLATE.value),
    )
    pending = Evidence(pending=frozenset({EXACT}))

    assert resolve_toolkit_image(POOL, toolkit, STREAMS, pending, filled).link is Link.TEMPLATE
    assert resolve_toolkit_image(POOL, toolkit, STREAMS, pending).link is Link.STREAM, (
        "nothing is in use"
    )
    assert resolve_toolkit_image(POOL, toolkit, STREAMS, current=filled).link is Link.STREAM, (
        "nobody reads them"
    )


def test_while_the_image_streams_are_not_known_what_labels_chose_stays_theirs() -> None:
    found = resolve_toolkit_image(
        POOL, Toolkit(), NotListed("503"), current=CurrentImage(THIRD, Link.LABELS.value)
    )

    assert (found.image, found.link) == (THIRD, Link.LABELS)


def test_latest_is_no_version() -> None:
    tags = {"latest": EXACT, "latest-rhel-10": EXACT, OLDER: SECOND}
    labels = Evidence({EXACT: ToolkitLabels(KERNEL), SECOND: ToolkitLabels(KERNEL)})

    assert (
        resolve_toolkit_image(POOL, Toolkit(), {NAME: ImageStream(NAME, tags)}, labels).image
        == SECOND
    )


def test_where_every_image_is_for_another_kernel_it_says_so_and_what_to_do() -> None:
    found = resolve_toolkit_image(POOL, Toolkit(), STREAMS, Evidence({EXACT: ToolkitLabels(OTHER)}))

    assert (found.image, found.link) == ("", Link.NONE)
    assert found.why == f"image stream {NAME} has tag {TAG}, but its image is for kernel {OTHER}"
    assert found.remedy == "name the image of this kernel in spec.toolkit.images"


def test_one_for_another_kernel_is_passed_over_for_the_template() -> None:
    toolkit = Toolkit(image_template="example.com/toolkit:{kernel}")

    found = resolve_toolkit_image(POOL, toolkit, STREAMS, Evidence({EXACT: ToolkitLabels(OTHER)}))

    assert found.link is Link.TEMPLATE
    assert found.why.endswith(f"has tag {TAG}, but its image is for kernel {OTHER}")


def test_one_that_is_in_use_stays_if_nothing_else_serves() -> None:
    wrong = Evidence({EXACT: ToolkitLabels(OTHER)})

    found = resolve_toolkit_image(
        POOL, Toolkit(), STREAMS, wrong, CurrentImage(EXACT, Link.STREAM.value)
    )

    assert (found.image, found.link) == (EXACT, Link.KEPT)
    assert found.why == (
        "the image used before, since nothing else serves; "
        f"image stream {NAME} has tag {TAG}, but its image is for kernel {OTHER}"
    )


def test_what_somebody_wrote_for_this_kernel_is_not_questioned() -> None:
    toolkit = Toolkit(images={KERNEL: EXACT})

    found = resolve_toolkit_image(POOL, toolkit, STREAMS, Evidence({EXACT: ToolkitLabels(OTHER)}))

    assert (found.image, found.link) == (EXACT, Link.MAP)


def test_the_tag_of_the_os_version_is_asked_for_and_all_where_it_does_not_serve() -> None:
    every = {Tag(NAME, tag, image) for tag, image in SEVERAL[NAME].tags.items()}

    assert list(tags_to_read(POOL, Toolkit(), SEVERAL)) == [Tag(NAME, TAG, EXACT)]
    assert set(tags_to_read(POOL, Toolkit(), SEVERAL, DRIFTED)) == every
    assert set(tags_to_read(Pool("x86_64", "418.1", KERNEL), Toolkit(), SEVERAL)) == every
    assert list(tags_to_read(POOL, Toolkit(images={KERNEL: EXACT}), SEVERAL)) == []
    assert list(tags_to_read(POOL, Toolkit(), None)) == []
    assert list(tags_to_read(Pool("x86_64", TAG, ""), Toolkit(), SEVERAL)) == []


def test_of_a_stream_with_many_tags_the_newest_are_asked_for() -> None:
    tags = {f"418.94.{day}-0": f"quay.io/dtk:{day}" for day in range(202501010000, 202501010200)}

    found = list(tags_to_read(POOL, Toolkit(), {NAME: ImageStream(NAME, tags)}))

    assert len(found) == 50
    assert found[-1].name == "418.94.202501010199-0"
    oldest = Pool("x86_64", "418.94.202501010000-0", KERNEL)
    wrong = Evidence({tags[oldest.os_version]: ToolkitLabels(OTHER)})
    again = list(tags_to_read(oldest, Toolkit(), {NAME: ImageStream(NAME, tags)}, wrong))
    assert again[0].name == oldest.os_version, "else it would be forgotten, and believed again"
    assert again[1:] == found


def test_a_template_that_is_not_there_fills_to_nothing() -> None:
    assert fill_template("", POOL) == ""


def test_of_two_streams_the_labels_of_the_other_rhel_are_not_asked_for() -> None:
    rhel_10 = {f"10.2.202601{day:02}-0": f"quay.io/dtk:10-{day}" for day in range(1, 61)}
    rhel_9 = {"9.8.20260808-0": "quay.io/dtk:9", "418.94.202501010000-0": "quay.io/dtk:418"}
    both = {NAME: ImageStream(NAME, {"latest": "quay.io/dtk", **rhel_9, **rhel_10})}

    found = [tag.name for tag in tags_to_read(POOL, Toolkit(), both)]

    assert found == ["latest", "418.94.202501010000-0", "9.8.20260808-0"]
