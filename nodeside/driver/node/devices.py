"""The device numbers of a module, which sysfs does not list directly.

For a device on a bus (PCI, USB, virtio, platform), its parents lead to a driver and its module. A
device without hardware (a misc device such as /dev/vpoll, /dev/zram0) has no such link. It belongs
to the module if its number appeared while the module was loaded (the caller keeps `device_numbers`
before and after), or if the device, its class or its major number (/proc/devices) has the module's
name. A device number is written c10:123 or b252:0. Only reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nodeside.protocol.module_names import kernel_name
from nodeside.system import sysfs
from nodeside.system.host import Host
from nodeside.values import frozen

_KINDS = {"char": "c", "block": "b"}


@frozen
class DeviceFile:
    """A character or block device; `node` is its name below /dev, `path` its directory in sysfs."""

    number: str
    node: str
    path: Path


def device_numbers(host: Host) -> frozenset[str]:
    """Return all current device numbers. New ones after a load belong to the loaded module."""
    return frozenset(number for number, _ in _list_devices(host))


def devices_of(
    module: str, host: Host, recorded: frozenset[str] = frozenset()
) -> tuple[DeviceFile, ...]:
    """Return the devices of a module; `recorded` are numbers that appeared at its load."""
    majors = _read_majors(host, module)
    return tuple(
        DeviceFile(number, _device_name(path) or path.name, path)
        for number, path in _list_devices(host)
        if number in recorded or _belongs_to_module(module, number, path, majors)
    )


def _list_devices(host: Host) -> Iterator[tuple[str, Path]]:
    for directory, letter in _KINDS.items():
        root = host.sys / "dev" / directory
        for number in sysfs.list_entries(root):
            yield f"{letter}{number}", (root / number).resolve()


def _belongs_to_module(module: str, number: str, path: Path, majors: frozenset[str]) -> bool:
    owner = _driving_module(path)
    if owner is not None:
        return kernel_name(owner) == module
    names = (path.name, sysfs.link_name(path / "subsystem"))
    return number.partition(":")[0] in majors or any(_named_after(module, name) for name in names)


def _driving_module(path: Path) -> str | None:
    """Return the module of the nearest driver above a device; "" if built in, None if none."""
    for directory in _walk_upward(path):
        if (directory / "driver").is_symlink():
            return sysfs.link_name(directory / "driver" / "module")
    return None


def _walk_upward(path: Path) -> Iterable[Path]:
    yield path
    for parent in path.parents:
        if parent.name == "devices":
            return
        yield parent


def _named_after(module: str, name: str) -> bool:
    """Return whether a name is the module's, with or without a number: zram0, dummy0, vpoll."""
    return re.fullmatch(re.escape(module) + r"_?\d*", kernel_name(name)) is not None


def _read_majors(host: Host, module: str) -> frozenset[str]:
    """Return the major numbers registered under the module's name, as c240 or b252."""
    majors = set()
    letter = "c"
    for line in (sysfs.read(host.proc / "devices") or "").splitlines():
        if line.endswith("devices:"):
            letter = line[0].lower()
            continue
        major, _, name = line.strip().partition(" ")
        if kernel_name(name) == module:
            majors.add(f"{letter}{major}")
    return frozenset(majors)


def _device_name(path: Path) -> str:
    lines = (sysfs.read(path / "uevent") or "").splitlines()
    key = "DEVNAME="
    return next((line.removeprefix(key) for line in lines if line.startswith(key)), "")
