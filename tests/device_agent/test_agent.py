"""`nodeside device-agent` with a kubelet that is played, over real sockets.

Where neither its command line nor its end is tried, the agent is a thread.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from nodeside.protocol.ready_file import clear_ready
from nodeside.system import process
from nodeside.system.host import Host
from tests.console import nodeside, until
from tests.device_agent.agent_process import (
    BOTH,
    agent,
    forked_agents,
    kubelet_directory,
    node,
    write_driver,
)
from tests.device_agent.agent_thread import agent_thread
from tests.device_agent.node import say_ready
from tests.device_agent.played_kubelet import LONG, PlayedKubelet, played_kubelet


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return node(tmp_path / "host")


@pytest.fixture
def directory() -> Iterator[Path]:
    with kubelet_directory() as path:
        yield path


@pytest.fixture
def kubelet(directory: Path, kubelets: PlayedKubelet) -> PlayedKubelet:
    kubelets.move(directory)
    return kubelets


@pytest.mark.slow
def test_a_container_gets_what_it_asked_for(
    host: Host, directory: Path, kubelet: PlayedKubelet
) -> None:
    with agent(host, directory) as process:
        kubelet.until_registered("example.com/edu")
        kubelet.until_list(BOTH)
        assert kubelet.said[-1]["numa"] == {"00:05.0": 0, "00:06.0": 1}
        requests = [{"devices_ids": ["00:06.0", "00:05.0"]}, {"devices_ids": ["00:06.0"]}]
        both, one = kubelet.call(resource="example.com/edu", allocate=requests)
        assert both == {
            "envs": {"ACCELERATOR_DEVICES": "00:05.0,00:06.0", "EDU_NODES": "/dev/edu0,/dev/edu1"},
            "devices": [
                {"container_path": node, "host_path": node, "permissions": "rw"}
                for node in ("/dev/edu0", "/dev/edu1")
            ],
            "mounts": [
                {"container_path": "/opt/edu", "host_path": "/opt/edu", "read_only": True},
                {"container_path": "/run/accelerator", "host_path": "/run/edu.sock"},
            ],
        }
        assert one["envs"]["ACCELERATOR_DEVICES"] == "00:06.0"
        wanted = [{"available_deviceIDs": list(BOTH), "allocation_size": 1}]
        preferred = kubelet.call(resource="example.com/edu", prefer=wanted)
        assert preferred == [{"deviceIDs": ["00:05.0"]}]
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(LONG) == 0
    kubelet.until(lambda each: each.get("ended") == "example.com/edu")
    assert list(directory.glob("nodeside-*.sock")) == []


def test_a_scraper_is_told_of_devices_and_of_who_has_them(
    host: Host, directory: Path, kubelet: PlayedKubelet
) -> None:
    devices = {"resource_name": "example.com/edu", "device_ids": ["00:06.0"]}
    other = {"resource_name": "example.com/other", "device_ids": ["00:05.0"]}
    container = {"name": "main", "devices": [devices, other]}
    pod = {"name": "worker", "namespace": "default", "containers": [container]}
    kubelet.call(pods=[pod])
    with agent_thread(host, directory, metrics_port=0) as process:
        kubelet.until_list(BOTH)
        port = process.metrics_port()
        text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=LONG).text
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert [
        (sample.labels["device"], sample.labels["pod"])
        for sample in found
        if sample.name == "nodeside_device_allocated"
    ] == [("00:06.0", "worker")]
    assert {
        sample.labels["device"]: sample.value
        for sample in found
        if sample.name == "nodeside_device_healthy"
    } == {"00:05.0": 1.0, "00:06.0": 1.0}


def test_what_happens_to_a_device_is_said_to_the_kubelet(
    host: Host, directory: Path, kubelet: PlayedKubelet
) -> None:
    file = host.sys / "bus/pci/devices/0000:00:05.0/liveness"
    with agent_thread(host, directory):
        kubelet.until_list(BOTH)
        file.write_text("dead\n")
        kubelet.until_list(BOTH | {"00:05.0": "Unhealthy"})
        request = [{"devices_ids": ["00:05.0"]}]
        answer = kubelet.call(resource="example.com/edu", allocate=request)
        assert answer == {"error": "device 00:05.0 does not work: liveness says 'dead', not 'ok'"}
        after = len(kubelet.said)
        file.write_text("ok\n")
        kubelet.until_list(BOTH, after)
        clear_ready(host, "edu")
        kubelet.until_list(dict.fromkeys(BOTH, "Unhealthy"))
        after = len(kubelet.said)
        say_ready(host)
        kubelet.until_list(BOTH, after)


def test_what_the_kubelet_asks_wrongly_is_refused_in_words(
    host: Host, directory: Path, kubelet: PlayedKubelet
) -> None:
    with agent_thread(host, directory):
        kubelet.until_list(BOTH)
        for wrong in ("00:07.0", "", "x" * 100_000, "00:05.0::0"):
            request = [{"devices_ids": [wrong]}]
            answer = kubelet.call(resource="example.com/edu", allocate=request)
            assert answer["error"].startswith("there is no device '"), answer
        flood = [{"devices_ids": [f"{number:05}" for number in range(10_000)]}]
        assert "error" in kubelet.call(resource="example.com/edu", allocate=flood)
        assert len(kubelet.call(resource="example.com/edu", allocate=[{"devices_ids": []}])) == 1


@pytest.mark.slow
def test_streams_that_are_abandoned_do_not_use_up_its_threads(
    host: Host, directory: Path, kubelet: PlayedKubelet
) -> None:
    with agent_thread(host, directory):
        kubelet.until_list(BOTH)
        kubelet.call(resource="example.com/edu", streams=200)
        request = [{"devices_ids": ["00:05.0"]}]
        until(lambda: isinstance(kubelet.call(resource="example.com/edu", allocate=request), list))
        after = len(kubelet.said)
        (host.sys / "bus/pci/devices/0000:00:05.0/liveness").write_text("dead\n")
        kubelet.until_list(BOTH | {"00:05.0": "Unhealthy"}, after)


@pytest.mark.slow
def test_a_kubelet_that_restarts_finds_the_plugin_again(host: Host, directory: Path) -> None:
    with agent_thread(host, directory):
        for _ in range(3):  # the first one is later than the agent
            with played_kubelet(directory) as kubelet:
                kubelet.until_registered("example.com/edu")
                kubelet.until_list(BOTH)


@pytest.mark.slow
def test_an_agent_that_is_killed_while_it_gives_devices_is_followed_by_another(
    host: Host, directory: Path, kubelet: PlayedKubelet
) -> None:
    both = {"resource": "example.com/edu", "allocate": [{"devices_ids": list(BOTH)}]}
    after = 0
    with forked_agents(host, directory) as start:
        for _ in range(30):
            pid = start()
            kubelet.until_registered("example.com/edu", after)
            kubelet.until_list(BOTH, after)
            after = len(kubelet.said)
            kubelet.begin(**both)
            os.kill(pid, signal.SIGKILL)
            kubelet.until(lambda each: "ended" in each, after)
            kubelet.until(lambda each: "answer" in each, after)  # of a call that may have failed
    assert len(list(directory.glob("nodeside-*.sock"))) == 1, "what was left was removed"
    with agent(host, directory):
        kubelet.until_list(BOTH, after)
        [given] = kubelet.call(**both)
        assert given["envs"]["EDU_NODES"] == "/dev/edu0,/dev/edu1"


@pytest.mark.slow
def test_a_second_agent_waits_for_the_first(
    host: Host, directory: Path, kubelet: PlayedKubelet
) -> None:
    with agent(host, directory) as first:
        kubelet.until_list(BOTH)
        with agent(host, directory) as second:
            until(lambda: any("another agent" in line for line in second.log))
            assert second.process.poll() is None
            after = len(kubelet.said)
            first.process.send_signal(signal.SIGTERM)
            kubelet.until_registered("example.com/edu", after)


@pytest.mark.slow
def test_what_reads_a_file_that_hangs_ends_with_the_agent(
    host: Host, directory: Path, kubelet: PlayedKubelet
) -> None:
    file = host.sys / "bus/pci/devices/0000:00:05.0/liveness"
    with agent(host, directory) as process:
        kubelet.until_list(BOTH)
        file.unlink()
        os.mkfifo(file)  # nobody ever writes: a read hangs, as in a driver's code
        main = psutil.Process(process.process.pid)
        until(main.children)
        ended = [os.pidfd_open(child.pid) for child in main.children()]
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(LONG) == 0
        for descriptor in ended:
            assert select.select([descriptor], [], [], LONG)[0], "it is still there"
            os.close(descriptor)


@pytest.mark.slow
def test_ten_thousand_shares_are_offered(
    host: Host, directory: Path, kubelet: PlayedKubelet
) -> None:
    units = {"resource": "example.com/unit", "discover": {"count": 160}, "shares": 64}
    write_driver(host, units)
    with agent_thread(host, directory):
        found = kubelet.until(lambda each: "list" in each)
        assert len(found["list"]) == 160 * 64
        request = [{"devices_ids": list(found["list"])}]
        assert kubelet.call(resource="example.com/unit", allocate=request) == [{}]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ("no devices", 3, "error: driver edu declares no devices"),
        ("no kubelet", 3, "error: there is no directory"),
        ("no driver", 3, "driver.yaml"),
    ],
)
@pytest.mark.usefixtures("not_run")
def test_what_is_wrong_is_said_at_once(
    host: Host, directory: Path, change: str, code: int, words: str
) -> None:
    if change == "no devices":
        write_driver(host)
    if change == "no kubelet":
        directory.rmdir()
    if change == "no driver":
        (host.root / "driver.yaml").unlink()
    done = nodeside("device-agent", "-f", host.root, "--kubelet-directory", directory)
    assert done.code == code
    assert words in done.error


def test_a_package_that_is_missing_is_named(host: Host) -> None:
    program = "import sys; sys.modules['google'] = None; from nodeside.__main__ import main; main()"
    argv = [sys.executable, "-c", program, "device-agent", "-f", str(host.root)]
    done = process.run(argv, check=False, timeout=LONG)

    assert done.exit_code != 1
    assert "the Python package google.protobuf is missing" in done.errors
    assert "pip install 'nodeside[devices]'" in done.errors


def test_the_socket_is_one(host: Host, directory: Path, kubelet: PlayedKubelet) -> None:
    with agent_thread(host, directory):
        kubelet.until_list(BOTH)
        (socket,) = directory.glob("nodeside-*.sock")
        assert stat.S_ISSOCK(socket.stat().st_mode)
