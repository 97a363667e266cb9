"""Pools: groups of a Driver's nodes that one build serves.

Pure. The kubelet's report (`status.nodeInfo`) decides what a node is. The labels of Node Feature
Discovery only confirm it: they lag a reboot by up to a minute and vanish when it is restarted. So
they can bring a driver to a node, but their absence removes none.
"""

from __future__ import annotations

from functools import lru_cache

from cluster.driver.os_version import os_version, ostree_version
from cluster.model.snapshot import Node, Pool

_OS_LABEL, _LINUX = "kubernetes.io/os", "linux"  # a label that every kubelet sets


def pool_of(
    node: Node, assigned: Pool | None = None, *, rebooted: bool = True, works: bool = True
) -> Pool:
    """Return the pool of a node that has been in pool `assigned` so far.

    The node stays there while its kernel is the same, unless it `rebooted` into another OS version,
    or the driver does not work there and only a label, which may have been late, has the version.
    So a package that changes /etc/os-release or a flapping label moves no running driver. Neither
    does a kubelet that has not reported its kernel yet. If it never did, the node is in a pool
    without a kernel, which nothing serves.
    """
    if assigned is not None and not node.kernel:
        return assigned
    if (
        assigned is not None
        and assigned.kernel == node.kernel
        and assigned.architecture == node.architecture
        and not (rebooted and has_version(node.os_image))
        and (works or not _label_has_version(node))
    ):
        return assigned
    version = ostree_version(node.labels, node.os_image) or os_version(node.os_image)
    return _shared_pool(node.architecture, version, node.kernel)


def has_version(os_image: str) -> bool:
    """Return whether `osImage` contains a version, not only a name as it may on CoreOS."""
    return any(letter.isdigit() for letter in os_version(os_image))


def _label_has_version(node: Node) -> bool:
    return bool(ostree_version(node.labels, "")) and not has_version(node.os_image)


@lru_cache(maxsize=4096)
def _shared_pool(architecture: str, version: str, kernel: str) -> Pool:
    """Return one shared object per pool, since pools are keys in many mappings."""
    return Pool(architecture, version, kernel)
