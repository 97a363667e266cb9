"""The stages of a Driver in their order, with the stage that `spec.devices` implies.

A Driver with `spec.devices` has the stage `devices`, whose pods offer these devices to the kubelet.
It is the first stage unless `spec.stages` lists it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodeside.spec.devices import Expose
from nodeside.spec.fleet import DEVICES_STAGE, Stage
from nodeside.spec.model import DriverSpec


def stages_of(spec: DriverSpec) -> tuple[Stage, ...]:
    """Return the stages of a Driver in their order."""
    listed = any(stage.name == DEVICES_STAGE for stage in spec.stages)
    return spec.stages if listed or not spec.devices else (Stage(DEVICES_STAGE), *spec.stages)


def awaited_resources(stage: Stage, spec: DriverSpec) -> Mapping[str, int]:
    """Return the resources that a node must offer before a stage is ready there, and how many.

    The stage `devices` awaits 0 of each of its resources: the kubelet reports a resource once the
    device agent has registered it, even without devices. It does not count what is exposed by
    dynamic resource allocation.
    """
    own = spec.devices if stage.name == DEVICES_STAGE else ()
    awaited = {each.resource: 0 for each in own if each.expose is Expose.DEVICE_PLUGIN}
    resource = stage.wait_for.resource if stage.wait_for else None
    return awaited | ({resource.name: resource.at_least} if resource else {})
