"""The stages of a Driver in their order, with the one that the controller makes itself.

A Driver with `spec.devices` has the stage `devices`, whose pods offer these devices to the kubelet.
It is the first stage unless `spec.stages` lists it. Pure.
"""

from __future__ import annotations

from nodeside.spec.fleet import DEVICES_STAGE, Stage
from nodeside.spec.model import DriverSpec


def stages_of(spec: DriverSpec) -> tuple[Stage, ...]:
    """Return the stages of a Driver in their order."""
    listed = any(stage.name == DEVICES_STAGE for stage in spec.stages)
    return spec.stages if listed or not spec.devices else (Stage(DEVICES_STAGE), *spec.stages)
