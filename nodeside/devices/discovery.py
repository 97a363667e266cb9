"""Find the devices that driver.yaml declares: what is there now, and whether it works.

One odd device is one line for people, never the end of the search. What sysfs shows of a device is
served by the driver's own code, so all of it is read in a child with a deadline; a device whose
files hang is unhealthy.
"""

from __future__ import annotations

import fnmatch
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from nodeside.devices.health import judge_texts, no_answer_message
from nodeside.devices.identity import (
    DeviceIds,
    natural_key,
    pci_function,
    pci_root,
    short_address,
)
from nodeside.errors import DeadlinePassed, NodesideError, SpecError
from nodeside.spec.devices import Device, Discover
from nodeside.system import sysfs
from nodeside.system.host import Host
from nodeside.system.pci import PciDevice, pci_devices
from nodeside.values import frozen

MOST = 4096  # devices of a resource
PATIENCE = 30.0  # seconds for reading all files of the devices of a resource
_TOGETHER, _ALONE = 10.0, 5.0  # seconds for the files of several devices, and of one
_BATCH = 128  # files that one child reads
_FILE = 4096  # characters that are read of a file; sysfs has no longer texts
_TEXT = 256  # characters that are kept


@frozen
class FoundDevice:
    """A device of a node.

    `address` is its PCI function as bus:device.function, with the domain where that is not 0000,
    and `pci_root` the root complex, as pci0000:00; "" if it has none. `nodes` are paths below the
    node's /dev. `numa_node` is -1 if it has none.
    `why` says what is wrong with an unhealthy one.
    """

    id: str
    address: str = ""
    nodes: tuple[str, ...] = ()
    numa_node: int = -1
    attributes: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    pci_root: str = ""

    @property
    def healthy(self) -> bool:
        return not self.why


@frozen
class FoundDevices:
    """The devices of one resource, ordered by id; `notes` are for people who miss one.

    `is_ready`: whether the driver was when they were looked for.
    """

    resource: str
    devices: tuple[FoundDevice, ...] = ()
    notes: tuple[str, ...] = ()
    is_ready: bool = True


@frozen
class _Place:
    """Where a device is.

    `path` is its resolved directory in sysfs, None if it has none. `node` is the device node that
    matched, if any, and `why` what is already known to be wrong.
    """

    path: Path | None
    node: str = ""
    why: str = ""

    @property
    def key(self) -> Path:
        return self.path or Path(self.node)


def discover_devices(
    host: Host, device: Device, *, not_ready: str = "", ids: DeviceIds | None = None
) -> FoundDevices:
    """Return the devices of one entry. `not_ready` says why the driver is not ready, if it is not.

    A caller that looks again and again passes the same `ids`. The search takes a bit more than 30 s
    if the driver hangs, and 10 s more if a regular expression does not come to an end.
    """
    found_devices = partial(FoundDevices, device.resource, is_ready=not not_ready)
    if device.discover.count:
        shared = (device.give.nodes.path,) if device.give.nodes else ()
        units = range(device.discover.count)
        found = (FoundDevice(str(number), nodes=shared, why=not_ready) for number in units)
        return found_devices(tuple(found))
    try:
        places = _distinct_places(_find_places(host, device.discover))
    except SpecError as exc:
        return found_devices(notes=(str(exc),))
    notes = () if places else (_nothing_found_message(host, device.discover),)
    if len(places) > MOST:
        notes = (f"more than {MOST} match; those after that are left out",)
        places = places[:MOST]
    given = (ids or DeviceIds()).assign_ids([place.key for place in places])
    devices = _Reading(host, device, places, given, not_ready).devices()
    return found_devices(tuple(sorted(devices, key=lambda each: natural_key(each.id))), notes)


def _distinct_places(places: Iterable[_Place]) -> Sequence[_Place]:
    """Return each place once, one more than MOST if there are more.

    A function that two entries match is a good one if one of them says so.
    """
    found: dict[Path, _Place] = {}
    for place in places:
        if place.key not in found or not place.why:
            found[place.key] = place
        if len(found) > MOST:
            break
    return tuple(found.values())


def _find_places(host: Host, discover: Discover) -> Iterator[_Place]:
    functions = _pci_functions(host) if discover.pci else {}
    for function in discover.pci:
        for path, there in functions.items():
            if there.is_of(function.vendor, function.device):
                bound = function.driver in ("", there.driver)
                why = f"bound to {there.driver or 'no driver'}, not to {function.driver}"
                yield _Place(path, why="" if bound else why)
    top = host.sys.resolve()
    for pattern in discover.sysfs:
        for path in sysfs.expand_pattern(host, pattern):
            if os.path.isdir(path) and path.resolve().is_relative_to(top):  # noqa: PTH112 - no error
                yield _Place(path.resolve())
    for pattern in discover.nodes:
        yield from _find_matching_nodes(host, pattern)


def _pci_functions(host: Host) -> Mapping[Path, PciDevice]:
    """Return the PCI functions by their resolved directories.

    While one is being removed, its link is gone before its directory: it is left out.
    """
    found = {
        (host.sys / "bus/pci/devices" / each.address).resolve(): each for each in pci_devices(host)
    }
    top = (host.sys / "devices").resolve()
    return {path: each for path, each in found.items() if path.is_relative_to(top)}


def _find_matching_nodes(host: Host, pattern: str) -> Iterator[_Place]:
    paths = [host.dev]
    for part in pattern.removeprefix("/dev/").split("/"):
        paths = [found for path in paths for found in _match_part(path, part)]
        if len(paths) > MOST:
            raise SpecError(f"{pattern}: matches more than {MOST} paths")
    for path in paths:
        if number := _device_number(path):
            there = host.sys / "dev" / number
            node = f"/dev/{path.relative_to(host.dev)}"
            yield _Place(there.resolve() if there.exists() else None, node)


def _match_part(directory: Path, part: str) -> Iterator[Path]:
    if part in ("", "."):
        yield directory
    elif "*" not in part:
        yield directory / part
    else:
        literal = part.replace("[", "[[]").replace("?", "[?]")
        names = (n for n in sysfs.list_entries(directory) if fnmatch.fnmatchcase(n, literal))
        yield from (directory / name for name in islice(names, MOST + 1))


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


@dataclass
class _Reading:
    """What the devices of one entry say, within `PATIENCE` for all of them."""

    host: Host
    device: Device
    places: Sequence[_Place]
    ids: Mapping[Path, str]
    not_ready: str
    _ends: float = field(default_factory=lambda: time.monotonic() + PATIENCE)

    def devices(self) -> list[FoundDevice]:
        nodes = self._device_nodes()
        said = self._read_contents(
            {place.path: self._files_of(place.path) for place in self.places if place.path}
        )
        wrong = self._find_problems(said)
        found = []
        for place in self.places:
            contents, trouble = said.get(place.key, ({}, ""))
            address = pci_function(place.path) if place.path else ""
            found.append(
                FoundDevice(
                    id=self.ids[place.key],
                    address=short_address(address),
                    nodes=nodes.get(place.key, ()),
                    numa_node=self._numa_node(address),
                    pci_root=pci_root(place.path) if place.path else "",
                    attributes={
                        each.name: contents[each.path][:_TEXT]
                        for each in self.device.attributes
                        if each.path in contents
                    },
                    why=self.not_ready
                    or place.why
                    or trouble
                    or self._no_node_message(place, nodes)
                    or _disappeared_message(place)
                    or wrong.get(place.key, ""),
                )
            )
        return found

    def _find_problems(
        self, said: Mapping[Path, tuple[Mapping[str, str], str]]
    ) -> Mapping[Path, str]:
        """Return what is wrong with each device by its health file; "" if nothing."""
        if (health := self.device.health) is None:
            return {}
        texts = {
            place.key: said.get(place.key, ({}, ""))[0].get(health.path) for place in self.places
        }
        judged = judge_texts(health, (text for text in texts.values() if text is not None))
        return {
            key: no_answer_message(health) if text is None else judged[text]
            for key, text in texts.items()
        }

    def _no_node_message(self, place: _Place, nodes: Mapping[Path, tuple[str, ...]]) -> str:
        wanted = self.device.give.nodes
        is_without = wanted is not None and wanted.class_ and not nodes.get(place.key)
        return f"it has no device node of class {wanted.class_}" if wanted and is_without else ""

    # --- files of devices

    def _files_of(self, path: Path) -> Mapping[str, Path]:
        """Return the files to read of a device, by their paths in driver.yaml."""
        health = (self.device.health.path,) if self.device.health else ()
        wanted = dict.fromkeys((*(each.path for each in self.device.attributes), *health))
        return {name: file for name in wanted if (file := _find_only_match(path, name)) is not None}

    def _read_contents(
        self, files: Mapping[Path, Mapping[str, Path]]
    ) -> Mapping[Path, tuple[Mapping[str, str], str]]:
        """Return what the files of each device say, and why they could not be read, or "".

        A child reads those of many devices; if that fails, each device's are read by themselves.
        """
        said: dict[Path, tuple[Mapping[str, str], str]] = {}
        paths = [path for path, wanted in files.items() if wanted]
        most = max((len(files[path]) for path in paths), default=1)
        together = max(1, _BATCH // most)
        for start in range(0, len(paths), together):
            some = {path: files[path] for path in paths[start : start + together]}
            try:
                said |= {
                    path: (each, "") for path, each in self._ask_sysfs(some, _TOGETHER).items()
                }
            except NodesideError:
                said |= {path: self._ask_one(path, files[path]) for path in some}
        return said

    def _ask_one(self, path: Path, files: Mapping[str, Path]) -> tuple[Mapping[str, str], str]:
        try:
            return self._ask_sysfs({path: files}, _ALONE)[path], ""
        except NodesideError as exc:
            return {}, str(exc)

    def _ask_sysfs(
        self, files: Mapping[Path, Mapping[str, Path]], seconds: float
    ) -> Mapping[Path, Mapping[str, str]]:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise DeadlinePassed(f"not read, since others took {PATIENCE:g} s to be read")
        every = [file for wanted in files.values() for file in wanted.values()]
        texts = iter(sysfs.read_attributes(*every, timeout=min(seconds, left), limit=_FILE))
        return {
            path: {name: _clean_text(text) for name in wanted if (text := next(texts)) is not None}
            for path, wanted in files.items()
        }

    # --- device nodes

    def _device_nodes(self) -> Mapping[Path, tuple[str, ...]]:
        """Return the device nodes to give for each device."""
        wanted = self.device.give.nodes
        if wanted and wanted.path:
            return {place.key: (wanted.path,) for place in self.places}
        if wanted:
            return self._nodes_of_class(wanted.class_)
        matched = {place.key: (place.node,) for place in self.places if place.node}
        own = [p.path for p in self.places if p.path and not p.node and (p.path / "dev").exists()]
        named = self._node_paths({path: path for path in own})
        return matched | {path: (node,) for path, node in named.items()}

    def _nodes_of_class(self, kind: str) -> Mapping[Path, tuple[str, ...]]:
        """Return the nodes of a class, each for the nearest device at or above it."""
        known = {place.path for place in self.places if place.path}
        members = self.host.sys / "class" / kind
        owners: dict[Path, Path] = {}
        for name in sysfs.list_entries(members):
            member = (members / name).resolve()
            owner = next((each for each in (member, *member.parents) if each in known), None)
            if owner is not None:
                owners[member] = owner
        nodes: dict[Path, tuple[str, ...]] = {}
        for member, node in self._node_paths(owners).items():
            nodes[owners[member]] = (*nodes.get(owners[member], ()), node)
        return nodes

    def _node_paths(self, members: Mapping[Path, Path]) -> Mapping[Path, str]:
        """Return the paths below /dev of what has a device node, as the kernel names them."""
        said = self._read_contents({path: {"uevent": path / "uevent"} for path in members})
        named = {
            path: _device_name(contents.get("uevent", "")) for path, (contents, _) in said.items()
        }
        return {path: f"/dev/{named[path]}" for path in members if named.get(path)}

    def _numa_node(self, address: str) -> int:
        if not address:
            return -1
        text = sysfs.read(self.host.sys / "bus/pci/devices" / address / "numa_node") or ""
        return int(text) if text.isdecimal() else -1


def _disappeared_message(place: _Place) -> str:
    return "it disappeared" if place.path is not None and not place.path.exists() else ""


def _find_only_match(directory: Path, pattern: str) -> Path | None:
    """Return the one path that a pattern matches below a directory; None if it is not just one."""
    paths = [directory]
    for part in pattern.split("/"):
        paths = [found for path in paths for found in _match_part(path, part)]
    return paths[0] if len(paths) == 1 else None


def _clean_text(text: str) -> str:
    return text.replace("\0", "").strip()[:_FILE]


def _device_name(uevent: str) -> str:
    """Return the node's name below /dev (Documentation/ABI/stable/sysfs-devices); "" for none."""
    for line in uevent.splitlines():
        key, _, value = line.partition("=")
        if key == "DEVNAME" and value and ".." not in value.split("/"):
            return value.lstrip("/")
    return ""


def _nothing_found_message(host: Host, discover: Discover) -> str:
    """Return why nothing was found, in words that name where to look."""
    if discover.pci:
        ids = ", ".join(f"{each.vendor}:{each.device or '*'}" for each in discover.pci)
        return f"this node has no PCI function {ids}"
    if discover.nodes and not host.dev.is_dir():
        return f"there is no {host.dev}: mount the host's /dev"
    if discover.nodes:
        return f"no device node {', '.join(discover.nodes)}: is the driver loaded?"
    missing = (_first_missing(host, pattern) for pattern in discover.sysfs)
    return "; ".join(dict.fromkeys(missing))


def _first_missing(host: Host, pattern: str) -> str:
    """Return the first part of a pattern that nothing matches."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    for length in range(1, len(parts) + 1):
        part = "/".join(parts[:length])
        if not sysfs.expand_pattern(host, part):
            return f"there is no /sys/{part}: is the driver loaded?"
    return f"/sys/{pattern} is no directory"
