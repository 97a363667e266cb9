"""Which nodes a Driver is for, and which of them one build serves: pools.

Pure. The kubelet's own word (`status.nodeInfo`) decides what a node is. The labels of Node Feature
Discovery confirm it: they lag a reboot by up to a minute and vanish when it is restarted, so they
can bring a driver to a node, but their absence takes none away.
"""

from __future__ import annotations

from functools import lru_cache

from cluster.model.snapshot import Node, Pool
from cluster.plan.nodes.os_version import os_version, ostree_version

_OS_LABEL, _LINUX = "kubernetes.io/os", "linux"  # a label of every kubelet's own


def pool_of(
    node: Node, assigned: Pool | None = None, *, rebooted: bool = True, works: bool = True
) -> Pool:
    """The pool of a node that is in pool `assigned` until now.

    It stays there while its kernel does, unless it `rebooted` into another OS version, or the
    driver does not work there and only a label tells the version, which may have been late.
    So a package that changes /etc/os-release, or a label that flaps, moves nothing that runs. Nor
    does a kubelet that has not told its kernel; one that never did is in a pool without one, which
    nothing serves.
    """
    if assigned is not None and not node.kernel:
        return assigned
    if (
        assigned is not None
        and assigned.kernel == node.kernel
        and assigned.architecture == node.architecture
        and not (rebooted and _tells_version(node.os_image))
        and (works or not _label_tells_version(node))
    ):
        return assigned
    version = ostree_version(node.labels, node.os_image) or os_version(node.os_image)
    return _pool(node.architecture, version, node.kernel)


def _tells_version(os_image: str) -> bool:
    """Whether the kubelet tells a version, and not only a name such as that of CoreOS."""
    return any(letter.isdigit() for letter in os_version(os_image))


def _label_tells_version(node: Node) -> bool:
    return bool(ostree_version(node.labels, "")) and not _tells_version(node.os_image)


@lru_cache(maxsize=4096)
def _pool(architecture: str, version: str, kernel: str) -> Pool:
    """One object for each pool: it is a key in many mappings."""
    return Pool(architecture, version, kernel)
