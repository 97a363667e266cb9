"""A cache of per-node results from the previous snapshot, valid while their inputs are unchanged.

Between two snapshots of 5,000 nodes only a few nodes change; results for the others are reused. The
cache needs no change notifications: each result is stored with the exact values it was computed
from, and is reused only for those. So a missed event does no harm, and a plan made with a cache
equals the plan made without one. A cache lives as long as its controller.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class NodeCache(Generic[T]):
    """Results of one kind by node name, all computed from the same shared inputs, the `ground`."""

    ground: object = None
    conclusions: dict[str, T] = field(default_factory=dict)

    def on(self, ground: object) -> dict[str, T]:
        """Return the mutable results for this ground; empty if the ground changed."""
        if ground != self.ground:
            self.ground, self.conclusions = ground, {}
        return self.conclusions

    def forget(self, nodes: Collection[str]) -> None:
        """Drop the results of all nodes that are not in `nodes`."""
        if len(self.conclusions) > len(nodes):
            rest = {name: each for name, each in self.conclusions.items() if name in nodes}
            self.conclusions = rest
