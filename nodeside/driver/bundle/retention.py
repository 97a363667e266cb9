"""Selects the bundles to keep in the node's cache; the rest go once a driver is ready.

Nodes often go back to an earlier kernel or version. A bundle that is still cached then saves a
build. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeside.driver.bundle.cache import CachedManifest
from nodeside.system.host import Kernel

KERNELS = 2  # other kernels that keep their latest bundle
VERSIONS = 2  # further bundles kept for the running kernel


def tags_to_keep(
    bundles: Iterable[CachedManifest], wanted: str, kernel: Kernel, loaded_key: str = ""
) -> set[str]:
    """Return the tags of the bundles to keep. `bundles` are those of a driver, newest first.

    The result includes the bundle tagged `wanted`, the loaded one and the latest others. The loaded
    one may be for another kernel. It proves what is loaded, and it is loaded again if an upgrade
    fails. Versions with equal sources share a key but have different tags; one of them is enough.
    """
    bundles = list(bundles)
    keep = {wanted}
    if not any(item.tag == wanted and item.manifest.key == loaded_key for item in bundles):
        keep.update([item.tag for item in bundles if item.manifest.key == loaded_key][:1])
    kernels: list[str] = []
    versions = 0
    for item in bundles:
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
