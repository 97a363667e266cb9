"""What the API server does not let the controller see, as every Driver says it.

Where a kind may not be listed nothing can be decided; where it may not be watched, what is decided
is of an earlier day. Either way no Driver may go on saying that all is well: what its conditions
say becomes Unknown, and the reason names the kind. An API server that is gone is another case:
nobody could be told. Pure; called by controller.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cluster.actions import Action, Plan
from cluster.reflector import Health
from cluster.trouble import Trouble, said, trouble_of
from cluster.world import DriverObject, World

_DOUBTFUL: Final = ("Ready", "Available", "Progressing")  # of every Driver


def blindness(kinds: Iterable[Health]) -> Trouble | None:
    """What is refused, and will be until somebody changes something in the cluster."""
    refused = {kind.kind: kind.refusal for kind in kinds if kind.refusal is not None}
    if not refused:
        return None
    first, *others = refused
    trouble = trouble_of(refused[first], f"see what becomes of each {first}")
    also = f"; nor of each {', '.join(others)}" if others else ""
    return replace(trouble, reason=f"{first}sUnreadable", message=trouble.message + also)


def with_blindness(plan: Plan, world: World, trouble: Trouble | None, wall: float) -> Plan:
    """The plan, in which every Driver says so, and not that it is ready."""
    if trouble is None:
        return plan
    actions: list[Action] = list(plan.actions)
    for driver in world.drivers.values():
        doubtful = (*_DOUBTFUL, *_of_stages(driver))
        actions = said(actions, driver, trouble, wall, dict.fromkeys(doubtful, "Unknown"))
    return replace(plan, actions=tuple(actions))


def _of_stages(driver: DriverObject) -> list[str]:
    there = {condition.get("type") for condition in driver.status.get("conditions") or ()}
    return [kind for kind in ("StagesReady",) if kind in there]
