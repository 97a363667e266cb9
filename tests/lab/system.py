"""The operating system that a node of the lab says it is: one version for each kernel, as CoreOS.

Pure. https://www.freedesktop.org/software/systemd/man/latest/os-release.html
"""

from __future__ import annotations

import re

# 6.1.0-56-cloud-amd64, 6.12.57+deb12-cloud-amd64
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-(\d+))?")


def ostree_version(kernel: str) -> str:
    """Returns the version of the system with this kernel release: of two, the newer has the newer.

    Where a version of CoreOS has the day of its build, it has the rest of the release.
    A real-time kernel is of a system of its own, unlike on OpenShift, and so is one of arm64: their
    headers are in toolkit images of their own.
    """
    match = _RELEASE.match(kernel)
    if match is None:
        raise ValueError(f"not a kernel release of Debian: {kernel}")
    major, minor, patch, build = match.groups()
    of_its_own = int("-rt-" in kernel) + 2 * int("arm64" in kernel)
    return f"{major}.{minor}.{int(minor):04}{int(build or patch):04}-{of_its_own}"


def os_release(kernel: str) -> str:
    """/usr/lib/os-release of a node with this kernel release."""
    version = ostree_version(kernel)
    return (
        f'PRETTY_NAME="Debian GNU/Linux 12 (a node of the lab) {version}"\n'
        f"ID=debian\nVERSION_ID=12\nOSTREE_VERSION={version}\n"
    )
