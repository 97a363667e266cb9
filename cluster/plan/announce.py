"""Events about what nodes cannot use: the driver image for one kernel, or a bundle. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.model.actions import EmitEvent
from cluster.plan.context.context import DriverContext


def fallback_events(context: DriverContext) -> Iterator[EmitEvent]:
    """Yield one Event per pool where nodes build because they cannot use its image or bundle.

    No Event is repeated, since the DaemonSet records the fallback.
    """
    found, fallbacks = context.resource, context.fallbacks.by_assignment
    for key, at in context.rollout.desired_daemonsets.items():
        daemonset = context.snapshot.daemonsets.get(key)
        if at in fallbacks and (daemonset is None or daemonset.fell_back != fallbacks[at]):
            yield EmitEvent(found.name, found.uid, True, "FellBack", fallbacks[at])
