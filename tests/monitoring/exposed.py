"""What Prometheus may be asked for: the metrics that there are, and values of their labels."""

from __future__ import annotations

from pathlib import Path

from cluster.manager.metrics import FAMILIES
from cluster.model.names import SILENT
from cluster.model.states import BuildProgress, Phase, Place
from nodeside.device_agent.inventory import KnownDevices, OfferedDevice, ResourceSnapshot
from nodeside.device_agent.metrics import Exposition
from nodeside.device_agent.pod_resources import PodContainer
from nodeside.devices.discovery import FoundDevice
from nodeside.protocol.node_status import State
from nodeside.system.host import Host
from tests.cluster.fakes.model import Model
from tests.device_agent.agent_process import EDU
from tests.device_agent.node import driver, say_ready


def exposed(directory: Path) -> set[str]:
    """The names of all metrics of the controller, and of an agent whose device a pod has."""
    say_ready(Host(directory))
    offered = {"00:05.0": OfferedDevice("00:05.0", FoundDevice("00:05.0"))}
    snapshot = ResourceSnapshot(EDU["resource"], (), KnownDevices(offered), True, 1, 1)
    held = {"00:05.0": [PodContainer("default", "worker", "main")]}
    agent = Exposition(driver(EDU), Host(directory), [snapshot], lambda: {EDU["resource"]: held})
    samples = {sample.name for family in agent.collect() for sample in family.samples}
    return samples | {family.name for family in FAMILIES}


def known() -> dict[str, set[str]]:
    """The values that the controller gives to labels."""
    model = Model()
    model.add(["n1"])
    model.apply_driver("edu")
    model.settle()
    return {
        "state": {*(state.value for state in State), SILENT},
        "place": {place.name.lower() for place in Place},
        "phase": {phase.name.lower() for phase in Phase},
        "progress": {progress.name.lower() for progress in BuildProgress},
        "condition": {each["type"] for each in model.drivers["edu"].status["conditions"]},
    }
