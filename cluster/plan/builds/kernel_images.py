"""Driver images for one kernel each, and the way back to building where there is none.

Pure. With `prebuilt.image` a pool gets pods of the image that was made for its kernel, without a
sidecar. A node that cannot pull it is assigned to another DaemonSet of the same pool and revision,
whose pods have `image` and build. Nodes where the image is stay.

That DaemonSet is the memory of it: its annotation says since when, and why. It survives a
controller, and ends with the revision, or with its last node. Where two nodes or more could not
pull the image, and most of those that tried, nodes that come new to the pool go there at once for
`BELIEVED` seconds; then the next of them tries the image again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cluster.model.annotations import ImageFallback, read_note
from cluster.model.snapshot import Assignment, DaemonSetObject, Pool
from cluster.plan.builds.toolkit_image import fill
from nodeside.spec import Driver

_NODES = 2  # that could not pull an image, before others do not try
NO_IMAGE: Final = "the image for its kernel cannot be pulled"  # why a node moves
LOST: Final = "an image could not be pulled; building instead"  # where no note says more
LINK: Final = "prebuilt-image"  # in the place of a link of toolkit_image.py


def image_for(driver: Driver, pool: Pool) -> str:
    """The driver image for the kernel of a pool, "" if the spec names none."""
    template = driver.spec.prebuilt.image
    version = driver.spec.version.replace("+", "_")
    return fill(template.replace("{version}", version), pool)


def at_of(found: DaemonSetObject) -> Assignment:
    """What a DaemonSet is for."""
    return Assignment(found.pool, found.revision, builds=bool(found.fell_back))


def falls(
    daemonsets: Sequence[DaemonSetObject],
    failing: Iterable[tuple[Assignment, str, str]],
    now: float,
) -> Mapping[Assignment, ImageFallback]:
    """By what they lead to. `failing` is where an image, which is named, cannot be had, and why."""
    found = {at_of(d): read_note(d.fell_back) for d in daemonsets if d.fell_back}
    for at, image, why in failing:
        there = Assignment(at.pool, at.revision, builds=True)
        if there not in found or not found[there].holds(now):
            found[there] = ImageFallback(
                now, f"image {image} cannot be pulled ({why}); building instead"
            )
    return found


def without_image(
    falls: Mapping[Assignment, ImageFallback],
    lacking: Mapping[Assignment, int],
    having: Mapping[Assignment, int],
    now: float,
) -> frozenset[Assignment]:
    """Of `falls`, those that send other nodes to build as well.

    What one node says of its pulls concerns that node. `lacking` counts the nodes that could not
    pull the image or build since, `having` those that run it, each by where they are.
    """
    found = set[Assignment]()
    for at, fall in falls.items():
        tried = replace(at, builds=False)
        without = lacking.get(at, 0) + lacking.get(tried, 0)
        if fall.holds(now) and without >= _NODES and without > having.get(tried, 0):
            found.add(at)
    return frozenset(found)
