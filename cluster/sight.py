"""What the API server does not let the controller see, as every Driver says it.

Where a kind may not be listed nothing can be decided; where it may not be watched, what is decided
is of an earlier day. Either way no Driver may go on saying that all is well. An API server that is
gone is another case: nobody could be told. Pure; called by controller.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cluster.actions import Action, Plan
from cluster.reflector import Health
from cluster.trouble import Trouble, said, trouble_of
from cluster.world import World


def blindness(kinds: Iterable[Health]) -> Trouble | None:
    """What is refused, and will be until somebody changes something in the cluster."""
    for kind in kinds:
        if kind.refusal is not None:
            return trouble_of(kind.refusal, f"see what becomes of each {kind.kind}")
    return None


def with_blindness(plan: Plan, world: World, trouble: Trouble | None, wall: float) -> Plan:
    """The plan, in which every Driver says so, and not that it is ready."""
    if trouble is None:
        return plan
    actions: list[Action] = list(plan.actions)
    for driver in world.drivers.values():
        actions = said(actions, driver, trouble, wall, {"Ready": "Unknown"})
    return replace(plan, actions=tuple(actions))
