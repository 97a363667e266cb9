"""The PCI devices of a node, each with the driver and module bound to it.

Validation, conflict checks and the holders of a module need to know what a driver is bound to.
"""

from __future__ import annotations

from pathlib import Path

from nodeside.system import sysfs
from nodeside.system.host import Host
from nodeside.values import frozen


@frozen
class PciDevice:
    """A PCI device. `driver` is the bound driver, `module` the driver's module; "" if none."""

    address: str
    vendor: str
    device: str
    driver: str = ""
    module: str = ""

    def is_of(self, vendor: str, device: str) -> bool:
        """Return whether the vendor id matches, and the device id unless that is empty."""
        return self.vendor == vendor.lower() and device.lower() in ("", self.device)


def pci_devices(host: Host) -> tuple[PciDevice, ...]:
    """Return all PCI devices of the node, ordered by address."""
    root = host.sys / "bus" / "pci" / "devices"
    return tuple(_pci_device(root / address) for address in sysfs.list_entries(root))


def _pci_device(path: Path) -> PciDevice:
    return PciDevice(
        address=path.name,
        vendor=(sysfs.read(path / "vendor") or "").removeprefix("0x"),
        device=(sysfs.read(path / "device") or "").removeprefix("0x"),
        driver=sysfs.link_name(path / "driver"),
        module=sysfs.link_name(path / "driver" / "module"),
    )
