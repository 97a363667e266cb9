"""What the caller of a build wants to hear while it waits, and how long it waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Patience:
    """Deadlines in seconds: for a sidecar to appear (its image may be large and still on its way),
    and for one that was lost to come back (the kubelet restarts it)."""

    appear: float = 1800.0
    come_back: float = 360.0


@dataclass(frozen=True)
class Listener:
    """The same for every rung of the ladder.

    `on_build_line` gets the build's output. `on_sidecar` gets the reason why there is no sidecar,
    and "" when there is one again. `stopping`: whether the caller no longer wants to wait.
    `repeat_failed`: whether a build that failed for good is tried again. Where nothing has changed
    since, it would only fail again, on every node, at every look.
    """

    patience: Patience = field(default_factory=Patience)
    on_build_line: Callable[[str], None] = field(default=lambda _: None)
    on_sidecar: Callable[[str], None] = field(default=lambda _: None)
    stopping: Callable[[], bool] = field(default=lambda: False)
    repeat_failed: bool = True
