"""Events about images that nodes cannot use: of a kernel, or of a toolkit. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.model.actions import EmitEvent
from cluster.plan.context.context import DriverContext


def fallback_events(context: DriverContext) -> Iterator[EmitEvent]:
    """Yield one Event per pool where nodes build because they cannot use its image or bundle.

    It is not repeated: the DaemonSet records the fallback.
    """
    found, falls = context.resource, context.fallbacks.by_assignment
    for key, at in context.rollout.desired_daemonsets.items():
        daemonset = context.snapshot.daemonsets.get(key)
        if at in falls and (daemonset is None or daemonset.fell_back != falls[at]):
            yield EmitEvent(found.name, found.uid, True, "FellBack", falls[at])
