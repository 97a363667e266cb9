"""Find the devices that driver.yaml declares: what is there now, and whether it works.

One odd device is one line for people, never the end of the search. Attributes are served by the
driver's own code, so they are read with a deadline (`sysfs.ask`); one that hangs makes its device
unhealthy.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from nodeside import sysfs
from nodeside.devices.identity import device_ids, pci_address, short_address
from nodeside.errors import NodesideError
from nodeside.host import Host
from nodeside.pci import pci_devices
from nodeside.spec.devices import Device, DeviceHealth, Discover

MOST = 4096  # devices of a resource
_TEXT = 256  # characters kept of an attribute
_TOGETHER = 64  # devices whose attributes one child reads


@dataclass(frozen=True)
class FoundDevice:
    """A device of a node.

    `address` is its PCI function as bus:device.function, with the domain where that is not 0000;
    "" if it has none. `nodes` are paths below the node's /dev. `numa_node` is -1 if it has none.
    `why` says what is wrong with an unhealthy one.
    """

    id: str
    address: str = ""
    nodes: tuple[str, ...] = ()
    numa_node: int = -1
    attributes: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    @property
    def healthy(self) -> bool:
        return not self.why


@dataclass(frozen=True)
class FoundDevices:
    """The devices of one resource, ordered by id; `notes` are for people who miss one."""

    resource: str
    devices: tuple[FoundDevice, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Place:
    """Where a device is in sysfs (None: nowhere), what matched, and what is wrong already."""

    path: Path | None
    node: str = ""
    why: str = ""


def discover(host: Host, device: Device, *, not_ready: str = "") -> FoundDevices:
    """Return the devices of one entry. `not_ready` says why the driver is not ready, if it is not.

    Raises SpecError for a pattern that matches too much.
    """
    if device.discover.count:
        shared = (device.give.nodes.path,) if device.give.nodes else ()
        units = tuple(
            FoundDevice(str(number), nodes=shared, why=not_ready)
            for number in range(device.discover.count)
        )
        return FoundDevices(device.resource, units)
    places = list(islice(_places(host, device.discover), MOST + 1))
    notes = [] if places else [_nothing(host, device.discover)]
    if len(places) > MOST:
        notes = [f"more than {MOST} match; those after that are left out"]
    kept = {place.path or Path(place.node): place for place in reversed(places[:MOST])}
    ids, nodes = device_ids(kept), _nodes(host, device, kept)
    files = _files(device)
    said = _contents([path for path, place in kept.items() if place.path], files)
    found = []
    for path, place in kept.items():
        contents, trouble = said.get(path, ({}, ""))
        address = pci_address(path)
        found.append(
            FoundDevice(
                id=ids[path],
                address=short_address(address),
                nodes=nodes[path],
                numa_node=_numa_node(host, address),
                attributes={
                    each.name: contents[each.path]
                    for each in device.attributes
                    if each.path in contents
                },
                why=not_ready or place.why or trouble or _wrong(device.health, contents),
            )
        )
    return FoundDevices(
        device.resource, tuple(sorted(found, key=lambda each: each.id)), tuple(notes)
    )


def _places(host: Host, discover: Discover) -> Iterator[_Place]:
    for function in discover.pci:
        for there in pci_devices(host):
            if there.is_of(function.vendor, function.device):
                path = (host.sys / "bus/pci/devices" / there.address).resolve()
                bound = function.driver in ("", there.driver)
                why = f"bound to {there.driver or 'no driver'}, not to {function.driver}"
                yield _Place(path, why="" if bound else why)
    for pattern in discover.sysfs:
        for path in sysfs.expand(host, pattern):
            if path.is_dir():
                yield _Place(path.resolve())
    for pattern in discover.nodes:
        yield from _nodes_like(host, pattern)


def _nodes_like(host: Host, pattern: str) -> Iterator[_Place]:
    parts = [part for part in pattern.removeprefix("/dev/").split("/") if part]
    paths = [host.dev]
    for part in parts:
        literal = part.replace("[", "[[]").replace("?", "[?]")
        paths = [
            path / name
            for path in paths
            for name in sysfs.names(path)
            if fnmatch.fnmatchcase(name, literal)
        ][: MOST + 1]
    for path in paths:
        if number := _device_number(path):
            there = host.sys / "dev" / number
            yield _Place(
                there.resolve() if there.exists() else None,
                node=f"/dev/{path.relative_to(host.dev)}",
            )


def _device_number(path: Path) -> str:
    """Return char/MAJOR:MINOR or block/MAJOR:MINOR; "" for what is no device node."""
    try:
        found = path.stat()
    except OSError:
        return ""
    number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    if stat.S_ISCHR(found.st_mode):
        return f"char/{number}"
    return f"block/{number}" if stat.S_ISBLK(found.st_mode) else ""


def _files(device: Device) -> tuple[str, ...]:
    """Return the files to read of each device, relative to it."""
    health = (device.health.path,) if device.health else ()
    return tuple(dict.fromkeys((*(each.path for each in device.attributes), *health)))


def _contents(
    paths: Sequence[Path], files: Sequence[str]
) -> Mapping[Path, tuple[Mapping[str, str], str]]:
    """Return what the files of each device say, and why they could not be read, or "".

    A child reads those of many devices; if that fails, each device's are read by themselves.
    """
    said: dict[Path, tuple[Mapping[str, str], str]] = {}
    for start in range(0, len(paths) if files else 0, _TOGETHER):
        some = paths[start : start + _TOGETHER]
        try:
            said |= {path: (each, "") for path, each in _ask(some, files).items()}
        except NodesideError:
            for path in some:
                said[path] = _ask_one(path, files)
    return said


def _ask_one(path: Path, files: Sequence[str]) -> tuple[Mapping[str, str], str]:
    try:
        return _ask([path], files)[path], ""
    except NodesideError as exc:
        return {}, str(exc)


def _ask(paths: Sequence[Path], files: Sequence[str]) -> Mapping[Path, Mapping[str, str]]:
    texts = iter(sysfs.ask(*(path / file for path in paths for file in files)))
    return {
        path: {file: _clean(text) for file in files if (text := next(texts)) is not None}
        for path in paths
    }


def _clean(text: str) -> str:
    return text.replace("\0", "").strip()[:_TEXT]


def _wrong(health: DeviceHealth | None, contents: Mapping[str, str]) -> str:
    if health is None or contents.get(health.path) == health.value.strip():
        return ""
    found = repr(contents[health.path]) if health.path in contents else "nothing"
    return f"{health.path} says {found}, not {health.value.strip()!r}"


def _nodes(
    host: Host, device: Device, kept: Mapping[Path, _Place]
) -> Mapping[Path, tuple[str, ...]]:
    """Return the device nodes to give for each device."""
    wanted = device.give.nodes
    if wanted is None:
        return {path: (place.node,) if place.node else () for path, place in kept.items()}
    if wanted.path:
        return dict.fromkeys(kept, (wanted.path,))
    nodes: dict[Path, tuple[str, ...]] = dict.fromkeys(kept, ())
    members = host.sys / "class" / wanted.class_
    for name in sysfs.names(members):
        member = (members / name).resolve()
        owner = next((each for each in (member, *member.parents) if each in nodes), None)
        if owner is not None and (node := _devname(member)):
            nodes[owner] = (*nodes[owner], f"/dev/{node}")
    return nodes


def _devname(path: Path) -> str:
    """Return the node's name below /dev, which the kernel says (Documentation/ABI/stable/sysfs)."""
    for line in (sysfs.read(path / "uevent") or "").splitlines():
        key, _, value = line.partition("=")
        if key == "DEVNAME" and value and ".." not in value.split("/"):
            return value.lstrip("/")
    return ""


def _numa_node(host: Host, address: str) -> int:
    if not address:
        return -1
    text = sysfs.read(host.sys / "bus/pci/devices" / address / "numa_node") or ""
    return int(text) if text.isdecimal() else -1


def _nothing(host: Host, discover: Discover) -> str:
    """Return why nothing was found, in words that name where to look."""
    if discover.pci:
        ids = ", ".join(f"{each.vendor}:{each.device or '*'}" for each in discover.pci)
        return f"this node has no PCI function {ids}"
    if discover.nodes:
        return f"no device node {', '.join(discover.nodes)}: is the driver loaded?"
    return "; ".join(_first_missing(host, pattern) for pattern in discover.sysfs)


def _first_missing(host: Host, pattern: str) -> str:
    """Return the first part of a pattern that nothing matches."""
    parts = [part for part in pattern.split("/") if part]
    for length in range(1, len(parts) + 1):
        part = "/".join(parts[:length])
        if not sysfs.expand(host, part):
            return f"there is no /sys/{part}: is the driver loaded?"
    return f"/sys/{pattern} is no directory"
