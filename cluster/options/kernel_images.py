"""Driver images for one kernel each, and the fallback to building if an image is missing.

Pure. With `prebuilt.image`, a pool's pods use the image made for its kernel, without a sidecar. A
node that cannot pull it is assigned to another DaemonSet of the same pool and revision, whose pods
use `image` and build. Nodes that have the image stay.

That DaemonSet stores the fallback: its annotation holds the time and the reason. It survives a
controller restart, and ends with the revision or with its last node. If at least two nodes, and
most of those that tried, could not pull the image, new nodes of the pool go there directly for
`FALLBACK_LASTS` seconds. Then the next new node tries the image again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cluster.driver.revisions import at_of
from cluster.driver.toolkit_image import fill
from cluster.model.annotations import ImageFallback, decode_fallback
from cluster.model.snapshot import Assignment, DaemonSetObject, Pool
from nodeside.spec import Driver

_NODES = 2  # nodes that could not pull an image before others stop trying
NO_IMAGE: Final = "the image for its kernel cannot be pulled"  # why a node moves
LOST: Final = "an image could not be pulled; building instead"  # if no note has the reason
LINK: Final = "prebuilt-image"  # used in place of a link of toolkit_image.py


def image_for(driver: Driver, pool: Pool) -> str:
    """Return the driver image for the kernel of a pool, "" if the spec has none."""
    template = driver.spec.prebuilt.image
    version = driver.spec.version.replace("+", "_")
    return fill(template.replace("{version}", version), pool)


def falls(
    daemonsets: Sequence[DaemonSetObject],
    failing: Iterable[tuple[Assignment, str, str]],
    now: float,
) -> Mapping[Assignment, ImageFallback]:
    """Return the fallbacks by the assignment they lead to.

    `failing` lists (assignment, image, reason) where an image cannot be pulled.
    """
    fallbacks = {at_of(d): decode_fallback(d.fell_back) for d in daemonsets if d.fell_back}
    for at, image, why in failing:
        building = Assignment(at.pool, at.revision, builds=True)
        if building not in fallbacks or not fallbacks[building].holds(now):
            fallbacks[building] = ImageFallback(
                now, f"image {image} cannot be pulled ({why}); building instead"
            )
    return fallbacks


def without_image(
    falls: Mapping[Assignment, ImageFallback],
    lacking: Mapping[Assignment, int],
    having: Mapping[Assignment, int],
    now: float,
) -> frozenset[Assignment]:
    """Return the members of `falls` that make other nodes build as well.

    One node's failed pull affects only that node. By assignment, `lacking` counts the nodes that
    could not pull the image or have built since, and `having` those that run it.
    """
    result = set[Assignment]()
    for at, fall in falls.items():
        with_image = replace(at, builds=False)
        without = lacking.get(at, 0) + lacking.get(with_image, 0)
        if fall.holds(now) and without >= _NODES and without > having.get(with_image, 0):
            result.add(at)
    return frozenset(result)
