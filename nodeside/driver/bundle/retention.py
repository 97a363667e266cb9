"""Which bundles stay in the node's cache; the others are collected once a driver is ready.

A node goes back to a kernel or a version more often than one thinks, and then a bundle that is
still there costs no build. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeside.driver.bundle.cache import CachedManifest
from nodeside.host import Kernel

KERNELS = 2  # kernels besides the running one of which one bundle stays, that of the last version
VERSIONS = 2  # other bundles that stay for the running kernel


def kept(
    shelf: Iterable[CachedManifest], wanted: str, kernel: Kernel, loaded_key: str = ""
) -> set[str]:
    """The tags of the bundles that stay. `shelf` is a driver's, newest first.

    Besides the last ones, that is the wanted one, and one that the kernel holds now, which may be
    for another kernel: it proves what is loaded, and is loaded again if an upgrade fails. Versions
    whose sources are equal have one key and a tag each; one of them is enough.
    """
    shelf = list(shelf)
    keep = {wanted}
    if not any(item.tag == wanted and item.manifest.key == loaded_key for item in shelf):
        keep.update([item.tag for item in shelf if item.manifest.key == loaded_key][:1])
    kernels: list[str] = []
    versions = 0
    for item in shelf:
        release = item.manifest.kernel.release
        if item.tag in keep:
            continue
        if release == kernel.release and versions < VERSIONS:
            versions += 1
            keep.add(item.tag)
        elif release not in (kernel.release, *kernels) and len(kernels) < KERNELS:
            kernels.append(release)
            keep.add(item.tag)
    return keep
