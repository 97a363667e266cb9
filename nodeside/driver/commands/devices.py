"""`nodeside driver devices`: the devices of this node that driver.yaml declares."""

from __future__ import annotations

from typing import Any

from nodeside.devices.discovery import FoundDevice, FoundDevices, discover_devices
from nodeside.driver.commands.outcome import CommandOutput, as_document
from nodeside.driver.ladder.task import Config, read_driver
from nodeside.log import escape_controls
from nodeside.protocol.ready_file import is_ready
from nodeside.text.table import table

COLUMNS = ("RESOURCE", "DEVICE", "PCI", "NUMA", "NODES", "ATTRIBUTES", "HEALTH")


def find_devices(config: Config) -> CommandOutput:
    """Return what is found for each entry of `spec.devices`. Raises SpecError."""
    driver, host = read_driver(config), config.host
    ready = is_ready(host, driver.name, host.boot_id)
    not_ready = "" if ready else f"driver {driver.name} is not ready on this node"
    found = [discover_devices(host, entry, not_ready=not_ready) for entry in driver.spec.devices]
    document = {
        "driver": driver.name,
        "ready": ready,
        "resources": [_resource_document(each) for each in found],
    }
    rows = [_device_row(each.resource, device) for each in found for device in each.devices]
    notes = [f"{each.resource}: {_single_line(note)}" for each in found for note in each.notes]
    if not driver.spec.devices:
        notes = [f"driver {driver.name} declares no devices: see `devices` in driver.yaml"]
    parts = [table(rows, header=COLUMNS) if rows else "", "\n".join(notes)]
    return CommandOutput(document, text="\n\n".join(filter(None, parts)))


def _resource_document(found: FoundDevices) -> dict[str, Any]:
    devices = [as_document(each) | {"healthy": each.healthy} for each in found.devices]
    return {"resource": found.resource, "devices": devices, "notes": list(found.notes)}


def _device_row(resource: str, device: FoundDevice) -> tuple[str, ...]:
    return (
        resource,
        device.id,
        device.address,
        "" if device.numa_node < 0 else str(device.numa_node),
        _single_line(" ".join(device.nodes)),
        _single_line(" ".join(f"{name}={value}" for name, value in device.attributes.items())),
        _single_line(device.why) or "healthy",
    )


def _single_line(text: str) -> str:
    """Return a text of the driver's as one line, which cannot look like another row."""
    return escape_controls(text, keep="")
