"""Times that others wrote, and how far ahead of ours one may be and still be believed.

A kubelet writes since when its node is not ready, and whoever may write an object can write when it
was changed. Pure; used wherever something is counted from such a time.
"""

from __future__ import annotations

from typing import Final

APART: Final = 600.0  # seconds that clocks are apart at most
_LONG_AGO: Final = 1.0  # not 0, which is unknown


def believed(moment: float, now: float) -> float:
    """A time by the wall clock, or one that is long ago where it is too far ahead to be true.

    As it stands nothing that is counted from it would ever be over, and neither as `now`, which is
    another one at the next look. With `now` 0 no time passes.
    """
    return moment if not now or moment <= now + APART else _LONG_AGO
