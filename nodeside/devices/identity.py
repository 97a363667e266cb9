"""Ids of devices: the same after a reboot; no two devices share one.

A PCI function is named by its address, which firmware and slots fix, and a USB device by its port.
Numbers that drivers count up (intel-fpga-port.1) depend on who is probed first, so they only order
what one function has. While somebody looks again and again, what is there keeps its id.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path

_DOMAIN = "0000:"
_USB_DEVICE = re.compile(r"[0-9]+-(?P<port>[0-9]+(\.[0-9]+)*)")  # the bus's number is no name
_FUNCTION = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")  # the same, dev_set_name
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")  # drivers/pci/probe.c
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")
_LONGEST = 63 - 4  # characters: of 63 in the device plugin API, ::63 is for a share
_REMEMBERED = 4096  # devices that are gone


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


class DeviceIds:
    """The ids of one resource's devices, look after look.

    What is there keeps its id: numbered anew, a device could get the id of a neighbour that is
    gone, and be given to a second container. What comes back gets its own again, if nobody has it
    now. The others get the first free one.
    """

    def __init__(self, known: Mapping[Path, str] | None = None) -> None:
        """Begin with the ids in `known`, of an earlier process in this boot."""
        self._known: dict[Path, str] = dict(known or {})  # what was seen last comes last

    @property
    def known_ids(self) -> Mapping[Path, str]:
        """The ids of devices present or gone, by resolved paths; the latest seen come last."""
        return self._known

    def assign_ids(self, paths: Iterable[Path]) -> Mapping[Path, str]:
        """Return an id for each resolved path: its PCI function's, with -2, -3 … for further ones.

        A device on USB has its port in the id. Without a PCI function, the id is the name.
        """
        groups: dict[str, list[Path]] = defaultdict(list)
        for path in set(paths):
            groups[_name_of_path(path)].append(path)
        there = {path for members in groups.values() for path in members}
        taken: dict[str, Path] = {}
        for path, known in reversed(self._known.items()):
            if path in there:
                taken.setdefault(known, path)
        ids = {path: known for known, path in taken.items()}
        for name, members in sorted(groups.items()):
            free = (each for each in _number_names(name, groups) if each not in taken)
            for path in sorted(members, key=natural_key):
                if path not in ids:
                    ids[path] = next(free)
                    taken[ids[path]] = path
        gone = {path: known for path, known in self._known.items() if path not in there}
        self._known = dict(islice(gone.items(), max(0, len(gone) - _REMEMBERED), None)) | ids
        return ids


def _number_names(name: str, names: Container[str]) -> Iterator[str]:
    """Yield a name, then the name with numbers, without any that are names already."""
    yield name
    yield from (each for number in count(2) if (each := f"{name}-{number}") not in names)


def _name_of_path(path: Path) -> str:
    address = short_address(pci_function(path))
    if not address:
        return _UNSAFE.sub("-", path.name)[: _LONGEST - 5]
    ports = (_USB_DEVICE.fullmatch(part) for part in reversed(path.parts))
    port = next((match["port"] for match in ports if match), "")
    return f"{address}-usb{port}"[: _LONGEST - 5] if port else address


def natural_key(name: object) -> tuple[list[tuple[int, str]], str]:
    """Return a key to sort by: numbers count by value, so that port.2 is before port.10."""
    words = re.split(r"(\d+)", str(name))
    numbers = [(int(word), "") if word.isdecimal() else (-1, word) for word in words]
    return numbers, str(name)
