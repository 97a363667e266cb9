"""Time, as something a test can replace: every wait here goes through a `Clock`.

Stdlib only: the common ground waits for locks with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Clock:
    """`now` is monotonic, in seconds; `sleep` waits for so many seconds."""

    now: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)
