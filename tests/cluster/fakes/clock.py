"""A clock that a test moves."""

from __future__ import annotations


class Clock:
    """Goes on only when it is told to."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time
