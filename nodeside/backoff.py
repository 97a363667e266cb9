"""Exponential backoff: how long to wait after a number of failures in a row. Stdlib only."""

from __future__ import annotations

_DOUBLINGS = 30  # more would only overflow


def backoff(failures: int, first: float, longest: float = float("inf")) -> float:
    """Returns seconds: `first` after one failure, doubled with each more, at most `longest`."""
    return min(first * 2.0 ** min(max(0, failures - 1), _DOUBLINGS), longest)
