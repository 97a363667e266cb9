"""What the status says of Drivers with a module in common. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cluster.plan.nodes.conflicts import WAY_OUT
from cluster.plan.status.messages import few_of
from cluster.plan.status.part import StatusPart

ByRival = Mapping[str, Collection[str]]


def status_part(contested: ByRival, taken: ByRival) -> StatusPart:
    """Returns the complaint about both kinds of nodes, see context/nodes.py."""
    words = [
        f"driver {rival} came first and has a module of the same name: this one is not "
        f"assigned to {few_of(sorted(names))}"
        for rival, names in contested.items()
        if names
    ]
    words += [
        f"driver {rival} has a module of the same name: nothing changes on "
        f"{few_of(sorted(names))} until one of the two drivers leaves them or has other modules"
        for rival, names in taken.items()
        if names
    ]
    message = "; ".join([*words, WAY_OUT]) if words else ""
    return StatusPart(complaints={"ModuleConflict": message})
