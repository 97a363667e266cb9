"""The static busybox of a machine: in its initramfs, and of the node outside every container.

It is that of this host, or, for a machine of another architecture, that of the archive.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import Archive, unpack_package
from nodeside.trial.machine import initramfs

_PACKAGE = "busybox-static"


def provide_busybox(archive: Archive, cache: TrialCache) -> Path:
    """Return the program. That of this host may be missing."""
    if not archive.architecture.is_foreign:
        return initramfs.BUSYBOX

    def fill(directory: Path) -> None:
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            tree = Path(scratch)
            (package,) = archive.download([_PACKAGE], tree)
            unpack_package(package, tree)
            shutil.copy(next(tree.glob("**/bin/busybox")), directory / "busybox")

    return cache.make("busybox", archive.digest, fill) / "busybox"
