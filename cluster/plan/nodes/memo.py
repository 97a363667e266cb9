"""What was concluded of nodes in the look before, where all that it rests on is still the same.

Between two looks at 5,000 nodes a handful of them change. What was concluded of the others is not
concluded again. Nobody tells a memory what changed: each conclusion is kept beside the very values
that it was drawn from, and is taken only for these. So an event that was missed does no harm, and a
plan that is made with a memory is the plan that is made without one. It
is held for the life of a controller.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Memo(Generic[T]):
    """Conclusions of one kind by the name of a node, all of them drawn on one `ground`."""

    ground: object = None
    conclusions: dict[str, T] = field(default_factory=dict)

    def on(self, ground: object) -> dict[str, T]:
        """What holds on this ground, to be looked up and added to: nothing if it is another one."""
        if ground != self.ground:
            self.ground, self.conclusions = ground, {}
        return self.conclusions

    def forget(self, there: Collection[str]) -> None:
        """All nodes but those that are there."""
        if len(self.conclusions) > len(there):
            kept = {name: each for name, each in self.conclusions.items() if name in there}
            self.conclusions = kept
