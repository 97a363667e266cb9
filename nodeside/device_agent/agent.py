"""The loop of the device agent: what is found goes to the plugins, which stay registered."""

from __future__ import annotations

import signal
import time
from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from nodeside import log
from nodeside.device_agent.feature_sinks import Sinks
from nodeside.device_agent.features import LabelLoop, label_in_thread
from nodeside.device_agent.finder import Finder, News
from nodeside.device_agent.inventory import Inventory, ResourceSnapshot
from nodeside.device_agent.plugin import Plugin
from nodeside.device_agent.pod_resources import Holders, NoAnswer, PodResources
from nodeside.device_agent.registration import Registration
from nodeside.devices.discovery import FoundDevices
from nodeside.spec import Driver
from nodeside.system.host import Host
from nodeside.values import frozen

if TYPE_CHECKING:
    from nodeside.device_agent.dra.agent import DraAgent
    from nodeside.device_agent.dra.site import Site

# Seconds between two looks at the kubelet's socket and ours: while it does not watch, and while it
# does. Each look takes milliseconds of a processor that sleeps otherwise.
_TICK, _QUIET = 1.0, 5.0


@dataclass
class _Resource:
    """An entry of `spec.devices` that was looked for."""

    inventory: Inventory
    plugin: Plugin
    registration: Registration


@frozen
class Kubelet:
    """Where the kubelet of this node is reached.

    `directory` is that of its device plugins, `pod_resources` the socket of its pod resources API.
    """

    directory: Path
    pod_resources: Path


def run_agent(
    driver: Driver,
    host: Host,
    kubelet: Kubelet,
    *,
    sinks: Sinks,
    state: Path | None = None,
    site: Site | None = None,
    metrics_port: int | None = None,
    needs_driver: bool = True,
    news: News,
) -> None:
    """Offer a driver's devices to a kubelet until the `news` are None; see `stop_signals`.

    Labels of the node go to `sinks`. `state` is a directory where ids of devices are kept. Without
    a `site` nothing is offered to claims, and without a port there are no metrics. Unless it
    `needs_driver`, the ready file is not looked at. Raises SystemRefused if it cannot listen on the
    port, and OSError.
    """
    with ExitStack() as stack:
        finder = Finder(driver, host, news, state=state, needs_driver=needs_driver)
        stack.callback(finder.close)
        agent = DeviceAgent(driver, host, kubelet, site)
        stack.callback(agent.close)
        if metrics_port is not None:
            waited_for = driver if needs_driver else None
            stack.enter_context(_serve_metrics(waited_for, host, agent, metrics_port))
        labels = LabelLoop(driver, host, agent.list_snapshots, sinks, needs_driver=needs_driver)
        stack.enter_context(label_in_thread(labels))
        while True:
            with suppress(Empty):
                found = news.get(timeout=_QUIET if agent.is_watched else _TICK)
                if found is None:
                    log.fact("stopping")
                    return
                if isinstance(found, BaseException):
                    raise found
                agent.take_devices(found, time.monotonic())
            agent.check(time.monotonic())


class DeviceAgent:
    """The plugins of one driver, and its DRA driver.

    A resource is not registered before its devices were looked for.
    """

    def __init__(self, driver: Driver, host: Host, kubelet: Kubelet, site: Site | None) -> None:
        self._driver = driver
        self._kubelet = kubelet
        self._pod_resources = PodResources(kubelet.pod_resources)
        self._resources: dict[str, _Resource] = {}
        self._dra = _make_dra_agent(driver, host, site)

    def take_devices(self, found: FoundDevices, now: float) -> None:
        """Offer the devices that were found for one resource."""
        if self._dra is not None and self._dra.offers_to_claims(found.resource):
            self._dra.take_devices(found, now)
            return
        is_new = found.resource not in self._resources
        resource = self._resource_of(found.resource)
        if resource.inventory.update(found, now) or is_new:
            resource.plugin.offer(resource.inventory.known.offered)

    @property
    def is_watched(self) -> bool:
        """Whether the kubelet listens to all that is offered."""
        plugins = all(resource.plugin.is_watched for resource in self._resources.values())
        return plugins and (self._dra is None or self._dra.is_watched)

    def check(self, now: float) -> None:
        """Register what is not registered. The kubelet, which may hang, is asked at most once."""
        any(resource.registration.check(now) for resource in self._resources.values())
        if self._dra is not None:
            self._dra.check(now)

    def _holders_of(self, name: str) -> Container[str] | None:
        try:
            return self._pod_resources.find_holders().get(name, {})
        except NoAnswer:
            return None

    def find_holders(self) -> Holders:
        """Return who has the devices, by resource. Raises NoAnswer."""
        found = self._pod_resources.find_holders()
        return found if self._dra is None else {**found, **self._dra.find_holders(found)}

    def list_snapshots(self) -> Iterator[ResourceSnapshot]:
        """Yield what is known of each resource, for the metrics."""
        for device in self._driver.spec.devices:
            if resource := self._resources.get(device.resource):
                plugin = resource.plugin
                yield ResourceSnapshot(
                    resource=device.resource,
                    attributes=device.attributes,
                    known=resource.inventory.known,
                    is_watched=plugin.is_watched,
                    registrations=plugin.registrations,
                    allocations=plugin.allocations,
                )
        if self._dra is not None:
            yield from self._dra.list_snapshots()

    def close(self) -> None:
        for resource in self._resources.values():
            resource.registration.close()
        if self._dra is not None:
            self._dra.close()

    def _resource_of(self, name: str) -> _Resource:
        if name not in self._resources:
            device = next(each for each in self._driver.spec.devices if each.resource == name)
            plugin = Plugin(device, self._kubelet.directory)
            registration = Registration(plugin, self._kubelet.directory)
            inventory = Inventory(name, device.shares, lambda: self._holders_of(name))
            self._resources[name] = _Resource(inventory, plugin, registration)
        return self._resources[name]


def _make_dra_agent(driver: Driver, host: Host, site: Site | None) -> DraAgent | None:
    if site is None:
        return None
    from nodeside.device_agent.dra.agent import DraAgent  # takes memory

    return DraAgent(driver, host, site)


def _serve_metrics(
    driver: Driver | None, host: Host, agent: DeviceAgent, port: int
) -> AbstractContextManager[int]:
    from nodeside.device_agent.metrics import Exposition, serve_metrics  # takes memory

    return serve_metrics(
        port, lambda: Exposition(driver, host, agent.list_snapshots(), agent.find_holders)
    )


@contextmanager
def stop_signals() -> Iterator[News]:
    """Yield a queue of news into which SIGTERM and SIGINT put None."""
    news: News = SimpleQueue()
    handlers = {
        number: signal.signal(number, lambda *_: news.put(None))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield news
    finally:
        for number, handler in handlers.items():
            with suppress(TypeError):  # a handler that Python did not set
                signal.signal(number, handler)
