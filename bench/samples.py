"""Numbers that were measured, and what is said of them. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Samples:
    """Measurements of one thing, in the order they were made; seconds unless said otherwise."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("nothing was measured")

    @classmethod
    def of(cls, values: Iterable[float]) -> Samples:
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def p95(self) -> float:
        """The smallest value that 95 % of all are not above (nearest rank)."""
        return sorted(self.values)[math.ceil(0.95 * len(self.values)) - 1]

    def against(self, other: Samples) -> Samples:
        """The ratio to `other`, round by round: what disturbs a round disturbs both sides."""
        return self._paired(other, lambda mine, theirs: mine / theirs)

    def minus(self, other: Samples) -> Samples:
        """The difference to `other`, round by round."""
        return self._paired(other, lambda mine, theirs: mine - theirs)

    def plus(self, other: Samples) -> Samples:
        """The sum with `other`, round by round."""
        return self._paired(other, lambda mine, theirs: mine + theirs)

    def _paired(self, other: Samples, combine: Callable[[float, float], float]) -> Samples:
        pairs = zip(self.values, other.values, strict=True)
        return Samples(tuple(combine(mine, theirs) for mine, theirs in pairs))


def seconds(samples: Samples) -> str:
    """`1.23 s (1.20-1.31)`."""
    return f"{samples.median:.2f} s ({samples.low:.2f}-{samples.high:.2f})"


def signed_seconds(samples: Samples) -> str:
    """`+0.12 s (-0.03 to +0.31)`."""
    return f"{samples.median:+.2f} s ({samples.low:+.2f} to {samples.high:+.2f})"


def milliseconds(samples: Samples) -> str:
    """`12.3 ms (11.0-15.2)`."""
    low, high = samples.low * 1000, samples.high * 1000
    return f"{samples.median * 1000:.1f} ms ({low:.1f}-{high:.1f})"


def latency(samples: Samples) -> tuple[str, str, str]:
    """Median, 95th percentile and maximum, in milliseconds."""
    low, middle, high = samples.median, samples.p95, samples.high
    return f"{low * 1000:.1f} ms", f"{middle * 1000:.1f} ms", f"{high * 1000:.1f} ms"


def ratio(samples: Samples) -> str:
    """`1.04 (1.01-1.09)`."""
    return f"{samples.median:.2f} ({samples.low:.2f}-{samples.high:.2f})"
