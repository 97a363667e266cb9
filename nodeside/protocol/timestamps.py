"""RFC 3339 timestamps in UTC, as Kubernetes writes them. Stdlib only.

https://datatracker.ietf.org/doc/html/rfc3339
"""

from __future__ import annotations

import time
from calendar import timegm

_SECONDS = "%Y-%m-%dT%H:%M:%S"


def rfc3339(seconds: float) -> str:
    """Format a Unix time as a metav1.Time: `2027-01-15T08:00:00Z`."""
    return time.strftime(f"{_SECONDS}Z", time.gmtime(seconds))


def rfc3339_micro(seconds: float) -> str:
    """Format a Unix time as a metav1.MicroTime: `2027-01-15T08:00:00.000000Z`."""
    return time.strftime(_SECONDS, time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


def parse_rfc3339(text: str) -> float:
    """Return the Unix time of a metav1.Time. Raises ValueError for anything else."""
    return float(timegm(time.strptime(text, f"{_SECONDS}Z")))
