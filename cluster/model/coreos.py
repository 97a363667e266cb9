"""Versions of CoreOS, which the tags of the Driver Toolkit are named by, and their order. Pure.

There are two forms. 418.94.202501221327-0 is of OpenShift 4.18 and RHEL 9.4, built on 2025-01-22
at 13:27. 9.6.20250916-0, the form since OpenShift 4.19, is of RHEL 9.6, built on 2025-09-16. CentOS
Stream CoreOS has 418.9.202504250632-0 and 9.0.20250827-0. So comparing the numbers gives no order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

# A date is read as digits: an impossible one has a place in the order too.
_OF_OPENSHIFT: Final = re.compile(
    r"([0-9])([0-9]{1,3})\.(1[0-9]|[1-9])([0-9]{0,2})\.([0-9]{8})([0-9]{4})-([0-9]{1,9})"
)
_OF_RHEL: Final = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{8})-([0-9]{1,9})")
_EL: Final = re.compile(r"\.el([0-9]{1,2})(?![0-9])")
_NO_TIME: Final = "9999"  # the form without a time is the newer one: later than any of its day


@dataclass(frozen=True, order=True, slots=True)
class CoreOS:
    """A version. Its order is that of the RHEL major version, then of the time of the build.

    `minor` is -1 for CentOS Stream, where the version does not show it. `openshift` is, for
    example, (4, 18), or empty.
    """

    major: int
    day: str
    time: str
    minor: int
    build: int
    openshift: tuple[int, ...] = field(default=(), compare=False)

    @property
    def is_stream(self) -> bool:
        """Return whether it is of CentOS Stream, which has no minor versions: 418.9.…, 9.0.…"""
        return self.minor < 0 or (not self.openshift and self.minor == 0)


_NONE: Final = CoreOS(-1, "", "", -1, -1)


@lru_cache(maxsize=1024)
def parse_coreos_version(text: str) -> CoreOS | None:
    """Parse a version; None if the text is none, such as `latest` or `debian12`."""
    if match := _OF_OPENSHIFT.fullmatch(text):
        release, rest, major, minor, day, time, build = match.groups()
        openshift = int(release), int(rest)
        return CoreOS(int(major), day, time, int(minor or -1), int(build), openshift)
    if match := _OF_RHEL.fullmatch(text):
        major, minor, day, build = match.groups()
        return CoreOS(int(major), day, _NO_TIME, int(minor), int(build))
    return None


def tag_order(tag: str) -> tuple[CoreOS, str]:
    """Return a sort key of image stream tags. Those that are no version come before all others."""
    return parse_coreos_version(tag) or _NONE, tag


def rhel_major_of(kernel: str) -> int | None:
    """Return the major version of the RHEL that a kernel release belongs to; None if to none."""
    match = _EL.search(kernel)
    return int(match[1]) if match else None
