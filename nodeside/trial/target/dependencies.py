"""The Debian packages that a build needs besides those of the toolkit's root file system.

dkms builds where all dependencies of a package are installed; a toolkit image has a compiler and
headers. After a failed build, what the package depends on is added.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from nodeside.errors import UsageError
from nodeside.trial.debian.archive import Archive

_STATUS = "var/lib/dpkg/status"
_OF_DKMS = frozenset({"dkms", "kmod", "make"})  # the node side does what dkms does


def missing_dependencies(package: str, archive: Archive, toolkit: Path) -> tuple[str, ...]:
    """Return direct dependencies that `toolkit` lacks; empty if `package` is not a package."""
    if "/" in package or package not in archive.names():
        return ()
    there = set(re.findall(r"^Package: (\S+)$", (toolkit / _STATUS).read_text(), re.MULTILINE))
    names = set(archive.names())
    chosen: dict[str, None] = {}
    for alternatives in archive.alternatives(package):
        if not set(alternatives) & (there | _OF_DKMS):
            chosen.update(dict.fromkeys([name for name in alternatives if name in names][:1]))
    return tuple(chosen)


def require_packages(packages: Sequence[str], archive: Archive) -> None:
    """Raise UsageError for a word that is no package of the archive."""
    if not packages:
        return
    names = archive.names()
    for package in packages:
        if package not in names:
            near = difflib.get_close_matches(package, names, n=3)
            raise UsageError(
                f"--toolkit-package {package}: Debian has no package of that name",
                hint=f"did you mean {' or '.join(near)}?" if near else "",
            )
