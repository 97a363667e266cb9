"""The dependencies of a Debian package that the toolkit's root file system lacks.

dkms builds where all dependencies of the package are installed; a toolkit image has a compiler and
headers. This is looked up after a failed build, to report a possible reason.
"""

from __future__ import annotations

import re
from pathlib import Path

from nodeside.trial.debian.archive import Archive

_STATUS = "var/lib/dpkg/status"
_OF_DKMS = frozenset({"dkms", "kmod", "make"})  # the node side does what dkms does


def missing(package: str, archive: Archive, toolkit: Path) -> tuple[str, ...]:
    """Return direct dependencies that `toolkit` lacks; empty if `package` is not a package."""
    if "/" in package or package not in archive.names():
        return ()
    installed = set(re.findall(r"^Package: (\S+)$", (toolkit / _STATUS).read_text(), re.MULTILINE))
    needed = dict.fromkeys(archive.depends(package))
    return tuple(name for name in needed if name not in installed | _OF_DKMS)
