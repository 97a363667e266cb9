"""Dynamic Resource Allocation in the agent: what is found goes to claims and into ResourceSlices.

Devices are published while the kubelet can reach the driver, and not before all entries were looked
for: a part of the pool would look like the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from nodeside import log
from nodeside.device_agent.dra.api import DraClient
from nodeside.device_agent.dra.driver import DraDriver
from nodeside.device_agent.dra.names import device_name
from nodeside.device_agent.dra.publisher import Publication, Publisher
from nodeside.device_agent.dra.service import ClaimService
from nodeside.device_agent.dra.site import Site
from nodeside.device_agent.dra.slices import MOST, Document, device_document, full_address
from nodeside.device_agent.inventory import Inventory, OfferedDevice, ResourceSnapshot
from nodeside.device_agent.pod_resources import Holders
from nodeside.devices.discovery import FoundDevices
from nodeside.spec import Driver
from nodeside.spec.devices import dra_devices
from nodeside.system import sysfs
from nodeside.system.host import Host


class DraAgent:
    """The DRA driver of a Driver on this node, and its ResourceSlices."""

    def __init__(self, driver: Driver, host: Host, site: Site) -> None:
        self._version = driver.spec.version
        self._host = host
        self._site = site
        self._entries = {each.resource: each for each in dra_devices(driver.spec.devices)}
        entries = list(self._entries.values())
        self._service = ClaimService(driver.name, entries, site, self._fetch_claim)
        self._driver = DraDriver(driver.name, site, self._service, self._note_kubelet_answer)
        self._inventories: dict[str, Inventory] = {}
        self._publisher: Publisher | None = None
        self._ids: dict[str, tuple[str, str]] = {}  # of PCI functions, by address
        self._is_cut = False

    def offers_to_claims(self, resource: str) -> bool:
        """Whether a resource is offered to claims."""
        return resource in self._entries

    def take_devices(self, found: FoundDevices, now: float) -> None:
        """Offer the devices that were found for one resource."""
        name = found.resource
        is_new = name not in self._inventories
        if is_new:
            shares = self._entries[name].shares
            self._inventories[name] = Inventory(
                name, shares, lambda: self._service.prepared_ids(name)
            )
        inventory = self._inventories[name]
        if inventory.update(found, now) or is_new:
            self._service.offer(name, inventory.known.offered)
            if self._publisher is not None:
                self._publisher.set_devices(self._working_devices())

    @property
    def is_watched(self) -> bool:
        """Whether the kubelet has registered the driver, and is there as far as is known."""
        return self._driver.is_registered and self._service.is_watched is not False

    def check(self, now: float) -> None:
        """See that the kubelet can find the driver, and that the devices are published."""
        if self._inventories.keys() != self._entries.keys():
            return
        is_serving = self._driver.check(now)
        self._service.check(now)
        if is_serving and self._publisher is None:
            cluster = DraClient(self._site.access)  # of the publisher's thread
            publication = Publication(cluster, self._driver.name, self._site.node)
            self._publisher = Publisher(publication)
            self._publisher.set_devices(self._working_devices())
        if not is_serving:
            self._stop_publishing()

    def list_snapshots(self) -> Iterator[ResourceSnapshot]:
        """Yield what is known of each resource, for the metrics."""
        for name, inventory in list(self._inventories.items()):  # other threads ask
            yield ResourceSnapshot(
                resource=name,
                attributes=self._entries[name].attributes,
                known=inventory.known,
                is_watched=self.is_watched,
                registrations=self._driver.registrations,
                allocations=self._service.count_preparations(name),
            )

    def find_holders(self, held: Holders) -> Holders:
        """Return who has the devices by resource, as `held` knows it by the driver's name."""
        mine = held.get(self._driver.name, {})
        return {
            resource: {
                id_: mine[name]
                for id_ in inventory.known.offered
                if (name := device_name(resource, id_)) in mine
            }
            for resource, inventory in list(self._inventories.items())
        }

    def close(self) -> None:
        """Stop. The kubelet deletes the slices unless an agent comes back within 30 s."""
        self._stop_publishing()
        self._driver.close()

    def _fetch_claim(self, namespace: str, name: str) -> Document:
        """Ask for a claim, in one of the server's threads. Raises KubernetesError."""
        with closing(DraClient(self._site.access)) as cluster:
            return cluster.fetch_claim(namespace, name)

    def _stop_publishing(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _note_kubelet_answer(self) -> None:
        if publisher := self._publisher:  # another thread may take it away
            publisher.note_kubelet_answer()

    # --- what is published

    def _working_devices(self) -> Sequence[Document]:
        """Return the devices that work, as ResourceSlices have them."""
        devices = [
            self._device_document(name, each)
            for name, inventory in sorted(self._inventories.items())
            for each in inventory.known.offered.values()
            if each.device.healthy
        ]
        if len(devices) > MOST and not self._is_cut:
            log.warning("too many devices; the last ones are not published", limit=MOST)
        self._is_cut = len(devices) > MOST
        return devices

    def _device_document(self, resource: str, offered: OfferedDevice) -> Document:
        attributes = self._entries[resource].attributes
        return device_document(
            device_name(resource, offered.id),
            offered,
            resource=resource,
            version=self._version,
            ids=self._pci_ids(offered.device.address),
            left_out=[each.name for each in attributes if each.metric],
        )

    def _pci_ids(self, address: str) -> tuple[str, str]:
        """Return vendor and device of a PCI function, as driver.yaml has them."""
        if address and address not in self._ids:
            path = self._host.sys / "bus/pci/devices" / full_address(address)
            vendor, model = (sysfs.read(path / name) or "" for name in ("vendor", "device"))
            self._ids[address] = vendor.removeprefix("0x"), model.removeprefix("0x")
        return self._ids.get(address, ("", ""))
