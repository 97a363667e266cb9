"""What a scraper gets of a device agent."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from nodeside.device_agent.inventory import KnownDevices, OfferedDevice, ResourceSnapshot
from nodeside.device_agent.metrics import Exposition, parse_number, serve_metrics
from nodeside.device_agent.pod_resources import Holders, NoAnswer, PodContainer
from nodeside.devices.discovery import FoundDevice
from nodeside.protocol.ready_file import ready_path
from nodeside.spec.devices import Attribute, Metric, MetricType
from nodeside.system.host import Host
from tests.device_agent.node import STAGES, driver, say_ready
from tests.patience import patience

LONG = patience(60.0)  # seconds
EDU = {"resource": "example.com/edu", "discover": {"pci": [{"vendor": "1234"}]}}
ATTRIBUTES = (
    Attribute("heat", "heat", Metric("edu_heat_celsius")),
    Attribute("interrupts", "irq", Metric("edu_interrupts_total", MetricType.COUNTER)),
    Attribute("revision", "revision"),
)
WORKS = FoundDevice(
    "00:05.0",
    "00:05.0",
    numa_node=1,
    attributes={"heat": "41.5", "interrupts": "0x10", "revision": "1"},
)
ILL = FoundDevice("ports\\", attributes={"heat": "hot", "interrupts": "inf"}, why="it \n is ill")
HOLDER = PodContainer("default", "worker", "main")


def snapshot(*devices: FoundDevice, shares: int = 1) -> ResourceSnapshot:
    suffixes = [f"::{share}" for share in range(shares)] if shares > 1 else [""]
    names = {f"{device.id}{suffix}": device for device in devices for suffix in suffixes}
    offered = {name: OfferedDevice(name, device) for name, device in names.items()}
    return ResourceSnapshot("example.com/edu", ATTRIBUTES, KnownDevices(offered), True, 2, 3)


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def scraped(
    host: Host, *snapshots: ResourceSnapshot, held: Mapping[str, PodContainer] | None = None
) -> dict[str, list[tuple[dict[str, str], float]]]:
    asked: list[int] = []

    def who() -> Holders:
        asked.append(1)
        if held is None:
            raise NoAnswer("there is no kubelet")
        mine = {name: [holder] for name, holder in held.items()}
        return {"example.com/edu": mine, "example.com/other": {"00:06.0": [HOLDER]}}

    kind, body = Exposition(driver(EDU), host, snapshots, who).encode_metrics("")
    assert kind.startswith("text/plain")
    assert len(asked) == 1, "a kubelet that hangs takes one deadline, however many resources"
    return samples(body.decode())


def of(device: str, **more: str) -> dict[str, str]:
    return {"resource": "example.com/edu", "device": device, **more}


def test_a_ready_file_with_odd_stages_spoils_no_scrape(tmp_path: Path) -> None:
    host = Host(tmp_path)
    say_ready(host)
    record = json.loads(ready_path(host, "edu").read_text())
    odd = {"\ud800": 1.0, "a\0b": 1.0, 'a"b': 1.0, "": 1.0, "x" * 40: 1.0, "é": 1.0}
    record["stages"] = {"look in cache": 0.5, **odd}
    ready_path(host, "edu").write_text(json.dumps(record).replace("0.5", '0.5, "load": 1e999'))
    found = scraped(host, snapshot(WORKS), held={})
    assert found["nodeside_driver_stage_seconds"] == [
        ({"driver": "edu", "stage": "look in cache"}, 0.5)
    ]
    assert found["nodeside_driver_ready"] == [({"driver": "edu", "version": "1.0.0"}, 1.0)]


def test_a_device_that_is_missing_does_not_work(tmp_path: Path) -> None:
    seen = snapshot(WORKS)
    found = scraped(
        Host(tmp_path), replace(seen, known=replace(seen.known, missing=["00:06.0"])), held={}
    )
    assert found["nodeside_device_healthy"] == [(of("00:05.0"), 1.0), (of("00:06.0"), 0.0)]
    assert found["nodeside_device_info"] == [(of("00:05.0", address="00:05.0", numa_node="1"), 1.0)]


def test_each_device_has_its_health_and_what_it_says_of_itself(tmp_path: Path) -> None:
    say_ready(Host(tmp_path))
    found = scraped(Host(tmp_path), snapshot(WORKS, ILL), held={})
    assert found["nodeside_driver_ready"] == [({"driver": "edu", "version": "1.0.0"}, 1.0)]
    assert found["nodeside_driver_ready_timestamp_seconds"] == [({"driver": "edu"}, 0.0)]
    assert found["nodeside_driver_stage_seconds"] == [
        ({"driver": "edu", "stage": stage}, seconds) for stage, seconds in STAGES.items()
    ]
    assert found["nodeside_device_healthy"] == [(of("00:05.0"), 1.0), (of("ports\\"), 0.0)]
    assert found["nodeside_device_info"] == [
        (of("00:05.0", address="00:05.0", numa_node="1"), 1.0),
        (of("ports\\", address="", numa_node=""), 1.0),
    ]
    assert found["edu_heat_celsius"] == [(of("00:05.0"), 41.5)], "hot is no number"
    assert found["edu_interrupts_total"] == [(of("00:05.0"), 16.0)]
    assert found["nodeside_device_plugin_watched"] == [({"resource": "example.com/edu"}, 1.0)]
    total = found["nodeside_device_plugin_registrations_total"]
    assert total == [({"resource": "example.com/edu"}, 2.0)]
    assert found["nodeside_device_plugin_allocations_total"][0][1] == 3.0


def test_who_has_a_device_is_named_while_it_has_it(tmp_path: Path) -> None:
    other = PodContainer("default", "other", "main")
    held = {"00:05.0::0": HOLDER, "00:05.0::2": HOLDER, "00:05.0::1": other, "gone::0": other}
    found = scraped(Host(tmp_path), snapshot(WORKS, shares=4), held=held)
    pod = {"namespace": "default", "container": "main"}
    assert found["nodeside_device_allocated"] == [
        (of("00:05.0", pod="other", **pod), 1.0),
        (of("00:05.0", pod="worker", **pod), 2.0),
    ]
    assert found["nodeside_device_holders_known"] == [({"resource": "example.com/edu"}, 1.0)]
    assert found["nodeside_driver_ready"][0][1] == 0.0
    assert "nodeside_driver_ready_timestamp_seconds" not in found


def test_of_a_driver_that_is_not_waited_for_nothing_is_said(tmp_path: Path) -> None:
    """Else it would be told for ever that it is not ready."""
    _, body = Exposition(None, Host(tmp_path), [snapshot(WORKS)], dict).encode_metrics("")
    found = samples(body.decode())
    assert "nodeside_driver_ready" not in found
    assert found["nodeside_device_healthy"] == [(of("00:05.0"), 1.0)]


def test_a_kubelet_that_does_not_answer_costs_nothing_else(tmp_path: Path) -> None:
    found = scraped(Host(tmp_path), snapshot(WORKS))
    assert found["nodeside_device_holders_known"] == [({"resource": "example.com/edu"}, 0.0)]
    assert "nodeside_device_allocated" not in found
    assert found["nodeside_device_healthy"] == [(of("00:05.0"), 1.0)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("42", 42.0), ("-1.5", -1.5), ("0x1F", 31.0), ("1e3", 1000.0)),
        *(("", None), ("nan", None), ("inf", None), ("1 2", None), ("0x", None)),
        *(("0x" + "f" * 256, None), ("9" * 400, None)),
    ],
)
def test_what_is_no_finite_number_is_no_sample(text: str, value: float | None) -> None:
    assert parse_number(text) == value


def test_it_is_served_under_one_path(tmp_path: Path) -> None:
    def exposition() -> Exposition:
        return Exposition(driver(EDU), Host(tmp_path), [snapshot(WORKS)], dict)

    with serve_metrics(0, exposition, host="127.0.0.1") as port:
        address = f"http://127.0.0.1:{port}"
        answer = requests.get(f"{address}/metrics", timeout=LONG)
        assert "nodeside_device_healthy" in samples(answer.text)
        openmetrics: dict[str, Any] = {"Accept": "application/openmetrics-text; version=1.0.0"}
        answer = requests.get(f"{address}/metrics", headers=openmetrics, timeout=LONG)
        assert answer.text.endswith("# EOF\n")
        assert requests.get(f"{address}/", timeout=LONG).status_code == 404


def test_slow_strangers_keep_no_scraper_out(tmp_path: Path) -> None:
    """They ask for nothing, or do not read what they asked for."""

    def exposition() -> Exposition:
        return Exposition(driver(EDU), Host(tmp_path), [snapshot(WORKS)] * 100, dict)

    with (
        serve_metrics(0, exposition, host="127.0.0.1") as port,
        ExitStack() as stack,
    ):
        for number in range(8):
            stranger = socket.create_connection(("127.0.0.1", port), LONG)
            stack.enter_context(stranger)
            if number % 2:
                stranger.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=LONG)
        assert answer.status_code == 200
