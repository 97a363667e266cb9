"""How far a node is drained: the part of the option `evict` that budgets and turns depend on. Pure.

The option fills it in (options/drain/). Without the option, every node is `IDLE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cluster.model.snapshot import Consumer, NamespacedName


@dataclass(frozen=True, slots=True)
class DrainState:
    """The drain of one node for one Driver.

    `since` is when the Driver began to hold the node, "" if it does not. `given_up` is the revision
    for which the node could not be drained in time. `ending` means that no Driver holds the node
    any more, but our cordon is still there. `pods` have to leave before the driver is replaced,
    also pods of drivers that come after it. `stage_pods` are the terminating stage pods on the
    node. `pods` and `stage_pods` are None if unknown.
    """

    since: str = ""
    given_up: str = ""
    ending: bool = False
    pods: Sequence[Consumer] | None = ()
    stage_pods: Sequence[NamespacedName] | None = ()

    @property
    def is_clear_of_pods(self) -> bool:
        """Returns whether no pod blocks a change any more."""
        return self.pods == () and self.stage_pods == ()

    @property
    def may_have_pods(self) -> bool:
        """Returns whether pods have to leave, as far as is known."""
        return self.pods is None or bool(self.pods)

    @property
    def has_labels(self) -> bool:
        return bool(self.since or self.given_up or self.ending)


IDLE: Final = DrainState()
