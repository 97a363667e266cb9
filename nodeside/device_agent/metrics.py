"""The Prometheus metrics of the device agent, and the server that answers scrapes.

A scrape gets what is known already: what the finder found last, at most an interval of `health` or
30 s ago. Only for who has which devices, the kubelet is asked at each scrape. There is no
authentication, as with other exporters of a node: docs/security.md.
"""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from itertools import islice
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodeside import __version__, log
from nodeside.device_agent.inventory import OfferedDevice, ResourceSnapshot
from nodeside.device_agent.pod_resources import Holders, NoAnswer, PodContainer
from nodeside.errors import SystemRefused
from nodeside.http.server import HttpServer
from nodeside.protocol.ready_file import is_ready, read_ready
from nodeside.spec import Driver
from nodeside.spec.devices import Attribute, MetricType
from nodeside.system.host import Host

PATH: Final = "/metrics"
_HEALTHY = "Whether a device works; the agent's log says why one does not."
# Of a ready file, which the driver container writes: a label must not spoil a scrape.
_STAGES, _STAGE = 16, re.compile("[a-z][a-z -]{0,31}")
_CONNECTIONS = 8
_SECONDS = 10.0  # for a whole connection
_SWEEP = 0.5  # seconds between two checks for expired connections


@dataclass(eq=False)  # a registry keeps it by its identity
class Exposition(Collector):
    """The metrics of a scrape. `held` returns who has which devices; it is asked once.

    `driver` is the one whose ready file is waited for, None if none is.
    """

    driver: Driver | None
    host: Host
    snapshots: Iterable[ResourceSnapshot]
    held: Callable[[], Holders]
    _families: dict[str, Metric] = field(default_factory=dict)

    def encode_metrics(self, accept: str) -> tuple[str, bytes]:
        """Return the metrics in the format that a scraper accepts, after its name."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        encode, kind = choose_encoder(accept)
        return kind, encode(registry)

    def collect(self) -> Iterable[Metric]:
        self._add_gauge(
            "nodeside_device_agent_info", "What offers the devices.", 1, version=__version__
        )
        if self.driver is not None:
            self._add_driver_metrics(self.driver)
        held = self._ask_holders()
        for snapshot in self.snapshots:
            self._add_plugin_metrics(snapshot)
            for device in snapshot.devices:
                labels = {"resource": snapshot.resource, "device": device.id}
                self._add_gauge("nodeside_device_healthy", _HEALTHY, device.healthy, **labels)
                numa = str(device.numa_node) if device.numa_node >= 0 else ""
                words = "Where a device is: its PCI function and NUMA node, if it has any."
                more = {"address": device.address, "numa_node": numa}
                self._add_gauge("nodeside_device_info", words, 1, **labels, **more)
                for attribute in snapshot.attributes:
                    self._add_attribute(attribute, device.attributes, labels)
            for missing in snapshot.known.missing:
                labels = {"resource": snapshot.resource, "device": missing}
                self._add_gauge("nodeside_device_healthy", _HEALTHY, False, **labels)
            self._add_holders(snapshot, held)
        return list(self._families.values())

    def _add_driver_metrics(self, driver: Driver) -> None:
        name, version = driver.name, driver.spec.version
        boot_id = Host().boot_id
        works = is_ready(self.host, name, boot_id)
        words = "Whether the driver works on this node in this boot."
        self._add_gauge("nodeside_driver_ready", words, works, driver=name, version=version)
        if works and (ready := read_ready(self.host, name, boot_id)):
            words = "Since when the driver has worked, in seconds since the epoch."
            self._add_gauge(
                "nodeside_driver_ready_timestamp_seconds", words, ready.since, driver=name
            )
            words = "How long a stage took when the driver came up, such as build or load."
            for stage, seconds in islice(ready.stages.items(), _STAGES):
                if _STAGE.fullmatch(stage) and math.isfinite(seconds):
                    labels = {"driver": name, "stage": stage}
                    self._add_gauge("nodeside_driver_stage_seconds", words, seconds, **labels)
            words = "How often a service was started again since its container started."
            for service in driver.spec.services:
                if (restarts := ready.services.get(service.name)) is not None:
                    labels = {"driver": name, "service": service.name}
                    metric = "nodeside_driver_service_restarts_total"
                    self._add_counter(metric, words, restarts, **labels)

    def _ask_holders(self) -> Holders | None:
        try:
            return self.held()
        except NoAnswer:
            return None

    def _add_plugin_metrics(self, snapshot: ResourceSnapshot) -> None:
        labels = {"resource": snapshot.resource}
        words = "Whether the kubelet listens to what is offered."
        self._add_gauge("nodeside_device_plugin_watched", words, snapshot.is_watched, **labels)
        words = "Registrations with the kubelet; it restarts, or the plugin does."
        name = "nodeside_device_plugin_registrations_total"
        self._add_counter(name, words, snapshot.registrations, **labels)
        words = "Times that devices were given: to containers, or to claims."
        name = "nodeside_device_plugin_allocations_total"
        self._add_counter(name, words, snapshot.allocations, **labels)

    def _add_attribute(
        self, attribute: Attribute, said: Mapping[str, str], labels: Mapping[str, str]
    ) -> None:
        metric, value = attribute.metric, parse_number(said.get(attribute.name, ""))
        if metric is None or value is None:
            return
        words = f"The content of {attribute.path} of a device."
        add = self._add_counter if metric.type is MetricType.COUNTER else self._add_gauge
        add(metric.name, words, value, **labels)

    def _add_holders(self, snapshot: ResourceSnapshot, held: Holders | None) -> None:
        labels = {"resource": snapshot.resource}
        words = "Whether the kubelet said who has the devices."
        self._add_gauge("nodeside_device_holders_known", words, held is not None, **labels)
        words = "How many shares of a device a container has: one, unless it is shared."
        mine = held.get(snapshot.resource, {}) if held else {}
        for (device, holder), count in sorted(_count_shares(snapshot.known.offered, mine).items()):
            pod = {"namespace": holder.namespace, "pod": holder.pod, "container": holder.name}
            self._add_gauge(
                "nodeside_device_allocated", words, count, **labels, device=device, **pod
            )

    def _add_gauge(self, metric: str, words: str, value: float, **labels: str) -> None:
        self._add_sample(GaugeMetricFamily, metric, words, value, labels)

    def _add_counter(self, metric: str, words: str, value: float, **labels: str) -> None:
        self._add_sample(CounterMetricFamily, metric, words, value, labels)

    def _add_sample(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        metric: str,
        words: str,
        value: float,
        labels: Mapping[str, str],
    ) -> None:
        family: Any = self._families.get(metric)
        if family is None:
            family = self._families[metric] = kind(metric, words, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), float(value))


def _count_shares(
    offered: Mapping[str, OfferedDevice], held: Mapping[str, Sequence[PodContainer]]
) -> Mapping[tuple[str, PodContainer], int]:
    """Return how many shares of each listed device each container has."""
    return Counter(
        (offered[name].device.id, holder)
        for name, holders in held.items()
        if name in offered
        for holder in holders
    )


def parse_number(text: str) -> float | None:
    """Return a finite number, decimal or hexadecimal with 0x; None if it is none."""
    try:
        value = float(int(text, 16)) if text.lower().startswith("0x") else float(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


# --- the server ----------------------------------------------------------------------------------


class _Server(HttpServer):
    exposition: Callable[[], Exposition]
    connections = _CONNECTIONS
    seconds = _SECONDS


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SECONDS
    server_version, sys_version = "nodeside", ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(404, explain=f"the only path is {PATH}")
            return
        with self.server.keep_open(self.connection):
            kind, body = self.server.exposition().encode_metrics(self.headers.get("Accept", ""))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.detail(format % args, component_part="metrics")


@contextmanager
def serve_metrics(
    port: int, exposition: Callable[[], Exposition], *, host: str = ""
) -> Iterator[int]:
    """Answer scrapes while the block runs; yield the port, a free one for 0.

    `exposition` makes an `Exposition` for each scrape. Raises SystemRefused if it cannot listen.
    """
    try:
        server = _Server(host, port, _Handler)
    except OSError as exc:
        raise SystemRefused(
            f"cannot listen on port {port} for metrics: {exc.strerror}",
            hint="choose another one with --metrics-port",
        ) from exc
    server.exposition = exposition
    thread = threading.Thread(
        target=server.serve_forever, args=(_SWEEP,), name="metrics", daemon=True
    )
    thread.start()
    log.fact("serving metrics", port=server.server_address[1])
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
