"""What a Debian package asks for that the toolkit's root file system does not have.

dkms builds where all dependencies of the package are installed; a toolkit image has a compiler and
headers. Called when a build has failed, to say what may be the reason.
"""

from __future__ import annotations

import re
from pathlib import Path

from nodeside.trial.archive import Archive

_STATUS = "var/lib/dpkg/status"
_OF_DKMS = frozenset({"dkms", "kmod", "make"})  # the node side does what dkms does


def missing(package: str, archive: Archive, toolkit: Path) -> tuple[str, ...]:
    """Direct dependencies that are not installed in `toolkit`; nothing for what is no package."""
    if "/" in package or package not in archive.names():
        return ()
    there = set(re.findall(r"^Package: (\S+)$", (toolkit / _STATUS).read_text(), re.MULTILINE))
    needed = dict.fromkeys(archive.depends(package))
    return tuple(name for name in needed if name not in there | _OF_DKMS)
