"""Events about what nodes cannot use, an image or a bundle, and about rivals for a device. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.model.actions import EmitEvent
from cluster.plan.context.context import DriverContext
from cluster.plan.rivals import device_rivals_in_words


def fallback_events(context: DriverContext) -> Iterator[EmitEvent]:
    """Yield one Event per pool where nodes build because they cannot use its image or bundle.

    No Event is repeated, since the DaemonSet records the fallback.
    """
    found, fallbacks = context.resource, context.fallbacks.by_assignment
    for key, at in context.rollout.desired_daemonsets.items():
        daemonset = context.snapshot.daemonsets.get(key)
        if at in fallbacks and (daemonset is None or daemonset.fell_back != fallbacks[at]):
            yield EmitEvent(found.name, found.uid, True, "FellBack", fallbacks[at])


def rival_events(context: DriverContext) -> Iterator[EmitEvent]:
    """Yield an Event for each other Driver for the same devices, once for each edit of this one.

    The preceding status update records that the edit has been seen.
    """
    snapshot, found = context.snapshot, context.resource
    if found.status.get("observedGeneration") == found.generation:
        return
    for words in device_rivals_in_words(snapshot, context.driver, snapshot.nodes.values()):
        yield EmitEvent(found.name, found.uid, True, "DeviceShared", words, of_status=True)
