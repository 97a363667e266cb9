"""Driver images for one kernel each, and nodes that build although their pool need not.

Pure. With `prebuilt.image`, a pool's pods use the image made for its kernel, without a sidecar. A
node that cannot pull it is assigned to another DaemonSet of the same pool and revision, whose pods
use `image` and build; so is a node that cannot use the bundle of a shared build. What one node can
pull or use says nothing about another: nodes that have the image or the bundle stay, and a new node
tries it first.

That DaemonSet stores the reason as an annotation. It survives a controller restart, and ends with
the revision or with its last node.
"""

from __future__ import annotations

from typing import Final

from cluster.driver.toolkit_image import fill_template
from cluster.model.snapshot import Pool
from nodeside.spec import Driver

# The reason if the annotation does not have it.
REASON_UNKNOWN: Final = "its image or bundle could not be used; building instead"
LINK: Final = "prebuilt-image"  # used in place of a link of toolkit_image.py


def image_for(driver: Driver, pool: Pool) -> str:
    """Return the driver image for the kernel of a pool, "" if the spec has none."""
    template = driver.spec.prebuilt.image
    version = driver.spec.version.replace("+", "_")
    return fill_template(template.replace("{version}", version), pool)
