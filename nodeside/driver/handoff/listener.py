"""The callbacks and timeouts of a caller that waits for a build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from nodeside.values import frozen


@frozen
class Patience:
    """Timeouts in seconds for a sidecar.

    `appear`: until it starts (its image may be large and still being pulled). `come_back`: until a
    lost one returns (the kubelet restarts it).
    """

    appear: float = 1800.0
    come_back: float = 360.0


@frozen
class Listener:
    """The caller's callbacks and options, the same for every rung of the ladder.

    `on_build_line` gets the build's output. `on_sidecar` gets the reason why there is no sidecar,
    and "" when there is one again. `stopping` returns whether to stop waiting. `repeat_failed`:
    whether to repeat a build, or the replacement of loaded modules, that failed permanently. If
    nothing has changed since, it would only fail again, on every node, at every check.
    """

    patience: Patience = field(default_factory=Patience)
    on_build_line: Callable[[str], None] = field(default=lambda _: None)
    on_sidecar: Callable[[str], None] = field(default=lambda _: None)
    stopping: Callable[[], bool] = field(default=lambda: False)
    repeat_failed: bool = True
