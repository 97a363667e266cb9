"""Events about images that nodes cannot use: of a kernel, or of a toolkit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cluster.driver.pod import DaemonSetInput
from cluster.driver.toolkit_evidence import remembered
from cluster.model.actions import EmitEvent
from cluster.model.snapshot import DaemonSetObject
from cluster.plan.context.context import DriverContext


def fallback_events(context: DriverContext) -> Iterator[EmitEvent]:
    """Yield one Event per pool that falls back to building because an image cannot be pulled.

    It is not repeated: the DaemonSet records the fallback.
    """
    found, falls = context.resource, context.fallbacks.by_assignment
    for key, at in context.rollout.desired_daemonsets.items():
        daemonset = context.snapshot.daemonsets.get(key)
        if at in falls and (daemonset is None or daemonset.fell_back != falls[at].annotation):
            yield EmitEvent(found.name, found.uid, True, "FellBack", falls[at].why)


def refusal_events(
    applied: Sequence[DaemonSetInput], daemonsets: Iterable[DaemonSetObject]
) -> Iterator[EmitEvent]:
    """Yield one Event per toolkit image that nodes refuse; DaemonSets record the refusal."""
    reported = {(k, image) for k, images in remembered(daemonsets).items() for image in images}
    for inputs in applied:
        owner, kernel = inputs.owner, (inputs.pool.kernel, inputs.pool.architecture)
        for image, why in inputs.refused.items():
            if (kernel, image) not in reported:
                reported.add((kernel, image))
                instead = f"; {inputs.toolkit} instead" if inputs.toolkit not in ("", image) else ""
                words = f"toolkit image {image} is not for kernel {kernel[0]}: {why}{instead}"
                yield EmitEvent(owner.name, owner.uid, True, "ToolkitRefused", words)
