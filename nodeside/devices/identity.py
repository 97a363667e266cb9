"""Ids of devices: the same after a reboot, and two devices never have one.

A PCI function is named by its address, which firmware and slots fix. Numbers that drivers count up
(intel-fpga-port.1) depend on who is probed first, so they only order what one function has.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DOMAIN = "0000:"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")
_LONGEST = 63  # characters of a device id in the kubelet's device plugin API


def pci_address(path: Path) -> str:
    """Return the nearest PCI function at or above a resolved directory of sysfs; "" if none."""
    candidates = (each.name for each in (path, *path.parents))
    return next((name for name in candidates if _ADDRESS.fullmatch(name)), "")


def short_address(address: str) -> str:
    """Return bus:device.function, with the domain where it is not 0000; all hexadecimal."""
    return address.removeprefix(_DOMAIN)


def device_ids(paths: Iterable[Path]) -> Mapping[Path, str]:
    """Return an id for each resolved path: its PCI function's, with -2, -3 … for further ones.

    Without a PCI function, it is the name.
    """
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in set(paths):
        address = short_address(pci_address(path))
        groups[address or _UNSAFE.sub("-", path.name)[: _LONGEST - 5]].append(path)
    return {
        path: name if number == 1 else f"{name}-{number}"
        for name, members in groups.items()
        for number, path in enumerate(sorted(members, key=_in_order), 1)
    }


def _in_order(path: Path) -> tuple[list[tuple[int, str]], ...]:
    """Numbers by value: port.2 is before port.10."""
    return tuple(
        [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", part)]
        for part in path.parts
    )
