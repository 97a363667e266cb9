"""Ids of devices: the same after a reboot, and two devices never have one.

A PCI function is named by its address, which firmware and slots fix, and a USB device by its port.
Numbers that drivers count up (intel-fpga-port.1) depend on who is probed first, so they only order
what one function has.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

_DOMAIN = "0000:"
_USB_DEVICE = re.compile(r"[0-9]+-(?P<port>[0-9]+(\.[0-9]+)*)")  # the bus's number is no name
_FUNCTION = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")  # the same, dev_set_name
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")  # drivers/pci/probe.c
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")
_LONGEST = 63 - 4  # characters: of 63 in the device plugin API, ::63 is for a share


def pci_function(path: Path) -> str:
    """Return the address of the nearest PCI function at or above a resolved directory, or "".

    By the name of its directory, so that one which is being removed keeps its id.
    """
    return next((part for part in reversed(path.parts) if _FUNCTION.fullmatch(part)), "")


def pci_root(path: Path) -> str:
    """Return the PCI root that a resolved directory is below, such as pci0000:00; or ""."""
    return next((part for part in path.parts if _ROOT.fullmatch(part)), "")


def short_address(address: str) -> str:
    """Return bus:device.function, with the domain where it is not 0000; all hexadecimal."""
    return address.removeprefix(_DOMAIN)


def device_ids(paths: Iterable[Path]) -> Mapping[Path, str]:
    """Return an id for each resolved path: its PCI function's, with -2, -3 … for further ones.

    A device on USB has its port in the id. Without a PCI function, the id is the name.
    """
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in set(paths):
        groups[_name(path)].append(path)
    ids: dict[Path, str] = {}
    taken = set(groups)
    for name, members in sorted(groups.items()):
        for number, path in enumerate(sorted(members, key=in_order)):
            ids[path] = name if number == 0 else _another(name, number + 1, taken)
            taken.add(ids[path])
    return ids


def _name(path: Path) -> str:
    address = short_address(pci_function(path))
    if not address:
        return _UNSAFE.sub("-", path.name)[: _LONGEST - 5]
    ports = (_USB_DEVICE.fullmatch(part) for part in reversed(path.parts))
    port = next((match["port"] for match in ports if match), "")
    return f"{address}-usb{port}"[: _LONGEST - 5] if port else address


def _another(name: str, number: int, taken: set[str]) -> str:
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"


def in_order(name: object) -> tuple[list[tuple[int, str]], str]:
    """Return a key to sort by: numbers count by value, so that port.2 is before port.10."""
    words = re.split(r"(\d+)", str(name))
    numbers = [(int(word), "") if word.isdecimal() else (-1, word) for word in words]
    return numbers, str(name)
