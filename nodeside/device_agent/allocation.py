"""What a container gets for the devices that it was given, and which ones it should be given. Pure.

The kubelet chooses devices among those that are free, and asks before it starts a container. All
of a container's devices of one resource come in one request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from nodeside.device_agent.inventory import OfferedDevice
from nodeside.devices.identity import natural_key
from nodeside.errors import NodesideError
from nodeside.spec.devices import Give
from nodeside.values import frozen


class UnknownDevice(NodesideError):
    """The kubelet names a device that is not listed."""

    reason = "UnknownDevice"


class DeviceUnhealthy(NodesideError):
    """The kubelet gives away a device that does not work any more."""

    reason = "DeviceUnhealthy"


@frozen
class ContainerGrant:
    """What a container gets: device nodes, by their paths on the node, and variables."""

    nodes: tuple[str, ...]
    environment: Mapping[str, str]


def make_grant(
    give: Give, offered: Mapping[str, OfferedDevice], ids: Sequence[str]
) -> ContainerGrant:
    """Return what a container gets that was given devices with these ids.

    Raises UnknownDevice, and DeviceUnhealthy with the reason.
    """
    found = {
        each.device.id: each.device for each in (_require_listed(offered, name) for name in ids)
    }
    devices = [found[name] for name in sorted(found, key=natural_key)]
    for device in devices:
        if not device.healthy:
            raise DeviceUnhealthy(f"device {device.id} does not work: {device.why}")
    nodes = tuple(dict.fromkeys(node for device in devices for node in device.nodes))
    words = {
        "{ids}": ",".join(device.id for device in devices),
        "{bdf}": ",".join(dict.fromkeys(d.address for d in devices if d.address)),
        "{nodes}": ",".join(nodes),
    }
    return ContainerGrant(
        nodes, {name: _fill_template(text, words) for name, text in give.environment.items()}
    )


def _require_listed(offered: Mapping[str, OfferedDevice], name: str) -> OfferedDevice:
    if name not in offered:
        raise UnknownDevice(f"there is no device {name[:80]!r}")
    return offered[name]


def _fill_template(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def prefer_ids(
    offered: Mapping[str, OfferedDevice], available: Sequence[str], must: Sequence[str], size: int
) -> Sequence[str]:
    """Return the `size` ids that a container should be given; those in `must` come first.

    They are on as few PCI roots and NUMA nodes as possible, in the smallest group that suffices, so
    that larger groups stay whole. Shares come from as many devices as possible, and from those with
    the most shares left.
    """
    chosen = list(dict.fromkeys(name for name in must if name in offered))
    taken = set(chosen)
    left = [name for name in dict.fromkeys(available) if name in offered and name not in taken]
    near = {
        offered[name].device.id
        for name in _group_with_room(offered, chosen, left, size - len(chosen))
    }
    used = Counter(offered[name].device.id for name in chosen)
    free: dict[str, list[str]] = {}  # shares by device, the first one last
    for name in sorted(left, key=natural_key, reverse=True):
        free.setdefault(offered[name].device.id, []).append(name)
    order = {device: number for number, device in enumerate(sorted(free, key=natural_key))}
    while len(chosen) < size and free:
        best = min(
            free, key=lambda each: (used[each], each not in near, -len(free[each]), order[each])
        )
        chosen.append(free[best].pop())
        used[best] += 1
        if not free[best]:
            del free[best]
    return chosen


def _group_with_room(
    offered: Mapping[str, OfferedDevice], chosen: Sequence[str], left: Sequence[str], more: int
) -> Sequence[str]:
    """Return the ids of a PCI root, else of a NUMA node, that has enough devices for the rest."""
    levels: Sequence[Callable[[OfferedDevice], object]] = (
        lambda each: (each.device.numa_node, each.device.pci_root),
        lambda each: each.device.numa_node,
    )
    for level in levels:
        places = {level(offered[name]) for name in chosen}
        groups: dict[object, list[str]] = {}
        for name in left:
            groups.setdefault(level(offered[name]), []).append(name)
        fitting = [
            ids
            for place, ids in groups.items()
            if places <= {place} and len({offered[name].device.id for name in ids}) >= more
        ]
        if fitting:
            return min(fitting, key=lambda ids: (len(ids), natural_key(ids[0])))
    return ()
