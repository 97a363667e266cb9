"""What is offered to the kubelet of one resource: what was found, and for a while what is gone.

The kubelet forgets a device that is no longer listed, and with it which container has it. So one
that is gone stays unhealthy for some minutes, and for as long as a container has it: a card that is
reset comes back to who had it. In the metrics, a device that is no longer listed is missing until
it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from nodeside import log
from nodeside.devices.discovery import FoundDevice, FoundDevices
from nodeside.spec.devices import Attribute
from nodeside.values import frozen

MOST = 1 << 16  # devices that are listed: the kubelet takes messages of 4 MiB
GONE_FOR = 300.0  # seconds that a device which is gone is still listed
MOST_MISSING = 256  # devices that are remembered after that
ASK_AGAIN = 30.0  # seconds after which the kubelet is asked again whether a container has it


@frozen
class OfferedDevice:
    """A device as the kubelet knows it, or one share of it. `id` is the kubelet's."""

    id: str
    device: FoundDevice


@frozen
class KnownDevices:
    """What the last look has shown.

    `offered` is by the kubelet's ids; `missing` are ids of devices that were listed since the start
    and have not come back; `is_ready` is whether the driver was.
    """

    offered: Mapping[str, OfferedDevice] = field(default_factory=dict)
    missing: Sequence[str] = ()
    is_ready: bool = True


@frozen
class ResourceSnapshot:
    """What the agent knows of a resource at one moment; the counts are since its start."""

    resource: str
    attributes: Sequence[Attribute]
    known: KnownDevices
    is_watched: bool
    registrations: int
    allocations: int

    @property
    def devices(self) -> Sequence[FoundDevice]:
        """Return the devices, each once: several ids of the kubelet may be shares of one."""
        return list({each.device.id: each.device for each in self.known.offered.values()}.values())


@dataclass
class Inventory:
    """The devices of a resource; each is listed `shares` times.

    `known` is replaced as a whole, since other threads read it. `held` returns the kubelet's ids of
    the devices that containers have, None if they are not known.
    """

    resource: str
    shares: int = 1
    held: Callable[[], Container[str] | None] = frozenset
    known: KnownDevices = field(default_factory=KnownDevices)
    _devices: dict[str, FoundDevice] = field(default_factory=dict)
    _gone: dict[str, float] = field(default_factory=dict)  # since when, in monotonic seconds
    _notes: tuple[str, ...] = ()

    def update(self, found: FoundDevices, now: float) -> bool:
        """Take over the devices found, log each change once, return whether there was one."""
        there = {device.id: device for device in found.devices}
        gone = {name: self._gone.get(name, now) for name in self._devices if name not in there}
        self._gone = self._keep_listed(gone, now)
        devices = there | {name: _mark_disappeared(self._devices[name]) for name in self._gone}
        before, self._devices = self._devices, dict(sorted(devices.items()))
        self._log_changes(before)
        missing = sorted({*self.known.missing, *before} - self._devices.keys())[:MOST_MISSING]
        if found.notes != self._notes:
            self._notes = found.notes
            for note in found.notes:
                log.warning("devices", resource=self.resource, note=note)
        changed = before != self._devices
        offered = self._list_offered() if changed else self.known.offered
        self.known = KnownDevices(offered, missing, found.is_ready)
        return changed

    def _keep_listed(self, gone: Mapping[str, float], now: float) -> dict[str, float]:
        """Return the devices that have disappeared but stay listed for now."""
        kept = {name: since for name, since in gone.items() if now < since + GONE_FOR}
        if due := gone.keys() - kept.keys():
            held = self.held()
            again = now - GONE_FOR + ASK_AGAIN
            kept |= {name: again for name in due if held is None or self._is_held(held, name)}
        return kept

    def _is_held(self, held: Container[str], name: str) -> bool:
        return any(share in held for share in _share_ids(name, self.shares))

    def _log_changes(self, before: Mapping[str, FoundDevice]) -> None:
        for name, device in self._devices.items():
            old = before.get(name)
            if old is not None and old.healthy == device.healthy:
                continue  # another reason is no news; a file may say something else each time
            if device.healthy:
                log.fact("device is healthy", resource=self.resource, device=name)
            else:
                log.warning(
                    "device is unhealthy", resource=self.resource, device=name, why=device.why
                )
        for name in before.keys() - self._devices.keys():
            log.warning("device is no longer listed", resource=self.resource, device=name)

    def _list_offered(self) -> Mapping[str, OfferedDevice]:
        """Return the listed devices by the kubelet's ids."""
        all_of_it = (
            OfferedDevice(share, device)
            for name, device in self._devices.items()
            for share in _share_ids(name, self.shares)
        )
        return {each.id: each for each in islice(all_of_it, MOST)}


def _mark_disappeared(device: FoundDevice) -> FoundDevice:
    return replace(device, nodes=(), why="it disappeared")


def _share_ids(name: str, shares: int) -> Sequence[str]:
    return [name] if shares == 1 else [f"{name}::{number}" for number in range(shares)]
