"""Evidence about toolkit images: which kernel each of them is for, by its labels. Pure.

OpenShift shows the labels of a Driver Toolkit image with the image stream tag; they are read before
an image is used. An image set for one kernel in toolkit.images needs no evidence. What a node
reports about an image is no evidence: it concerns that node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cluster.model.snapshot import EMPTY, Pool, ToolkitLabels
from nodeside.protocol.build_job import kernel_variant

# RHEL kernel releases. The labels vary as /etc/driver-toolkit-release.json does: the rt label may
# be absent, lack `+rt`, or be no release at all, and early labels lack the architecture.
_RELEASE = re.compile(r"^\d+\.\d+\.\d+-\S+$")
_TAIL = re.compile(r"(?:\.(x86_64|aarch64|ppc64le|s390x))?(?:\+[\w-]+)*$")


@dataclass(frozen=True, slots=True)
class Evidence:
    """The labels of images. Those of `pending` images are not read yet."""

    labels: Mapping[str, ToolkitLabels] = field(default_factory=lambda: EMPTY)
    pending: frozenset[str] = frozenset()

    def against(self, image: str, pool: Pool) -> str:
        """Return why an image is not for the kernel of a pool, "" if nothing says so."""
        labels = self.labels.get(image)
        if labels is None or fits(labels, pool) is not False:
            return ""
        return f"its image is for kernel {_kernel_label(labels, kernel_variant(pool.kernel))}"

    def speaks_for(self, image: str, pool: Pool) -> bool:
        """Return whether the labels of an image name the kernel of a pool."""
        labels = self.labels.get(image)
        return labels is not None and bool(fits(labels, pool))


NO_EVIDENCE: Final = Evidence()


def fits(labels: ToolkitLabels, pool: Pool) -> bool | None:
    """Return whether the labels name the kernel of a pool; None if they do not tell.

    No label covers debug kernels, whose headers are in a separate package. An image of another
    release lacks them. For an image of the same release the sidecar decides.
    """
    variant = kernel_variant(pool.kernel)
    label = _kernel_label(labels, variant)
    if not (_RELEASE.match(label) and _RELEASE.match(pool.kernel)):
        return None
    tail = _TAIL.search(label)
    if tail and tail[1] not in (None, pool.architecture):
        return None
    if _TAIL.sub("", label, count=1) != _TAIL.sub("", pool.kernel, count=1):
        return False
    return None if "debug" in variant else True


def _kernel_label(labels: ToolkitLabels, variant: str) -> str:
    """Return the label for a kernel variant.

    Kernels with 64 KiB pages come with the plain kernel of the same release.
    https://github.com/openshift/driver-toolkit/blob/main/Dockerfile
    """
    return labels.rt_kernel if "rt" in variant.split("-") else labels.kernel
