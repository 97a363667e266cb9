"""Where a toolkit image comes from."""

from __future__ import annotations

from cluster.toolkit import Kept, Link, Resolution, fill, resolve
from cluster.world import ImageStream, Pool
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
    found = resolve(POOL, Toolkit(), STREAMS)

    assert (found.image, found.link) == ("quay.io/dtk@sha256:94", Link.STREAM)
    assert "has tag 418.94.202501221327-0" in found.why


def test_what_somebody_wrote_for_this_kernel_comes_first() -> None:
    found = resolve(POOL, Toolkit(images={KERNEL: "example.com/toolkit:1"}), STREAMS)

    assert (found.image, found.link) == ("example.com/toolkit:1", Link.MAP)


def test_without_a_tag_the_template_is_filled_in() -> None:
    other = Pool("x86_64", "debian12", "6.12.107+deb12-amd64")
    toolkit = Toolkit(image_template="example.com/{osVersion}/{arch}:{kernel}")

    found = resolve(other, toolkit, STREAMS)

    assert found.image == "example.com/debian12/x86_64:6.12.107_deb12-amd64"
    assert found.link is Link.TEMPLATE
    assert "has no tag debian12" in found.why


def test_a_tag_that_vanishes_changes_nothing_where_it_is_used() -> None:
    gone = {NAME: ImageStream(NAME, {"latest": "quay.io/dtk@sha256:00"})}

    found = resolve(POOL, Toolkit(), gone, kept=Kept("quay.io/dtk@sha256:94", "image-stream"))

    assert (found.image, found.link) == ("quay.io/dtk@sha256:94", Link.KEPT)


def test_an_image_that_built_for_the_same_kernel_serves_another_os_version() -> None:
    other = Pool("x86_64", "418.94.202502020000-0", KERNEL)
    proven = {(KERNEL, "x86_64"): "quay.io/dtk@sha256:94"}

    found = resolve(other, Toolkit(), STREAMS, proven)

    assert (found.image, found.link) == ("quay.io/dtk@sha256:94", Link.PROVEN)


def test_with_nothing_it_says_what_was_looked_at_and_which_tags_there_are() -> None:
    other = Pool("aarch64", "418.94.202502020000-0", KERNEL)

    found = resolve(other, Toolkit(), STREAMS)

    assert found == Resolution(
        "",
        Link.NONE,
        "image stream openshift/driver-toolkit has no tag 418.94.202502020000-0",
        ("418.94.202501221327-0", "latest"),
        "wait for the tag, or name an image in spec.toolkit.images",
    )


def test_of_what_nobody_set_up_it_says_nothing() -> None:
    other = Pool("aarch64", "418.94.202502020000-0", KERNEL)

    found = resolve(other, Toolkit(images={"6.1.0": "example.com/toolkit:1"}), None)

    assert found.why == (
        f"toolkit.images does not name kernel {KERNEL}; this cluster has no image streams"
    )
    assert found.remedy == (
        "name one in spec.toolkit.images, or all of them by spec.toolkit.imageTemplate"
    )


def test_a_cluster_without_image_streams_says_so() -> None:
    assert "this cluster has no image streams" in resolve(POOL, Toolkit(), None).why
    assert "there is no image stream openshift/driver-toolkit" in resolve(POOL, Toolkit(), {}).why


def test_a_template_that_is_not_there_fills_to_nothing() -> None:
    assert fill("", POOL) == ""
