"""Guards against timestamps written by others that lie too far in the future.

A kubelet records since when its node is not ready, and anyone who may write an object can set the
time of its last change. Pure.
"""

from __future__ import annotations

from typing import Final

CLOCK_SKEW: Final = 600.0  # maximum clock skew in seconds
_LONG_AGO: Final = 1.0  # not 0, which means unknown


def distrust_far_future(moment: float, now: float) -> float:
    """Return a wall clock time, or a time long ago if `moment` is too far in the future.

    A timeout counted from a future time would never expire. Clamping to `now` would not help,
    since `now` differs at every call. If `now` is 0, `moment` is returned unchanged.
    """
    return moment if not now or moment <= now + CLOCK_SKEW else _LONG_AGO
