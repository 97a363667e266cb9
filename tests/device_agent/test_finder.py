"""The process that looks for devices."""

from __future__ import annotations

import os
import select
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from nodeside.device_agent.finder import Finder, _subsystems
from nodeside.devices.discovery import FoundDevices
from nodeside.host import Host
from nodeside.ready_file import clear_ready
from tests.device_agent.node import driver, say_ready
from tests.driver.fakes.kernel import add_pci_device, write

LONG = 60.0  # seconds
EDU = {"resource": "example.com/edu", "discover": {"pci": [{"vendor": "1234", "device": "11e8"}]}}
UNITS = {"resource": "example.com/unit", "discover": {"count": 2}}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for directory in ("sys", "dev", "run/nodeside"):
        (tmp_path / directory).mkdir(parents=True)
    say_ready(Host(tmp_path))
    return Host(tmp_path)


class Heard:
    """What a finder says, one by one."""

    def __init__(self, finder: Finder) -> None:
        self.finder = finder
        self._waiting: list[FoundDevices] = []

    def next(self) -> FoundDevices:
        while not self._waiting:
            readable, _, _ = select.select([self.finder.fileno()], [], [], LONG)
            assert readable, "it says nothing"
            self._waiting += self.finder.read()
            assert self.finder.is_running
        return self._waiting.pop(0)

    def until(self, resource: str, why: str) -> FoundDevices:
        while True:
            found = self.next()
            if found.resource == resource and {each.why for each in found.devices} == {why}:
                return found


@pytest.fixture
def heard(host: Host) -> Iterator[Heard]:
    real = add_pci_device(host, "0000:00:05.0", "1234", "11e8", "edu")
    write(real / "liveness", "ok\n")
    health = {"path": "liveness", "value": "ok", "intervalSeconds": 1}
    finder = Finder(driver(EDU | {"health": health}, UNITS), host)
    yield Heard(finder)
    finder.close()


def until_read(pipe: Path) -> int:
    """Wait until somebody reads a pipe, in vain; return its other end."""
    while True:
        with suppress(OSError):  # ENXIO: nobody does
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)


def test_each_resource_is_looked_for(heard: Heard) -> None:
    found = {each.resource: each for each in (heard.next(), heard.next())}
    assert [each.id for each in found["example.com/edu"].devices] == ["00:05.0"]
    assert [each.id for each in found["example.com/unit"].devices] == ["0", "1"]


def test_a_driver_that_is_ready_no_longer_is_noticed_and_that_it_is_again(
    heard: Heard, host: Host
) -> None:
    heard.until("example.com/unit", "")
    clear_ready(host, "edu")
    heard.until("example.com/unit", "driver edu is not ready on this node")
    say_ready(host)
    heard.until("example.com/unit", "")


def test_without_a_driver_of_ours_none_is_waited_for(host: Host) -> None:
    clear_ready(host, "edu")
    finder = Finder(driver(UNITS), host, needs_driver=False)
    try:
        assert [each.why for each in Heard(finder).next().devices] == ["", ""]
    finally:
        finder.close()


def test_a_ready_file_of_another_boot_is_none(heard: Heard, host: Host) -> None:
    clear_ready(host, "edu")
    say_ready(host, boot_id="another")
    heard.until("example.com/unit", "driver edu is not ready on this node")


def test_a_health_file_is_read_again_after_its_interval(heard: Heard, host: Host) -> None:
    heard.until("example.com/edu", "")
    file = host.sys / "bus/pci/devices/0000:00:05.0/liveness"
    file.write_text("tired\n")
    heard.until("example.com/edu", "liveness says 'tired', not 'ok'")
    file.write_text("ok\n")
    heard.until("example.com/edu", "")


def test_a_device_whose_files_hang_delays_no_other_resource(host: Host) -> None:
    real = add_pci_device(host, "0000:00:05.0", "1234", "11e8", "edu")
    os.mkfifo(real / "liveness")  # nobody ever writes: a read hangs, as in a driver's code
    health = {"path": "liveness", "value": "ok"}
    finder = Finder(driver(EDU | {"health": health}, UNITS), host)
    try:
        assert Heard(finder).next().resource == "example.com/unit"
    finally:
        finder.close()


def test_a_device_keeps_its_id_when_one_before_it_goes(host: Host) -> None:
    function = host.sys / "devices/pci0000:00/0000:00:05.0"
    for number in range(2):
        write(function / f"port{number}" / "liveness", "ok\n")
    health = {"path": "liveness", "value": "ok", "intervalSeconds": 1}
    ports = {"sysfs": ["devices/pci0000:00/0000:00:05.0/port*"]}
    finder = Finder(
        driver({"resource": "example.com/edu", "discover": ports, "health": health}), host
    )
    try:
        heard = Heard(finder)
        assert [each.id for each in heard.next().devices] == ["00:05.0", "00:05.0-2"]
        shutil.rmtree(function / "port0")
        while len(left := heard.next().devices) == 2:
            pass
        assert [each.id for each in left] == ["00:05.0-2"]
    finally:
        finder.close()


def test_no_child_is_left_when_the_agent_ends(host: Host) -> None:
    real = add_pci_device(host, "0000:00:05.0", "1234", "11e8", "edu")
    os.mkfifo(real / "liveness")
    finder = Finder(driver(EDU | {"health": {"path": "liveness", "value": "ok"}}, UNITS), host)
    Heard(finder).next()
    writer = until_read(real / "liveness")
    [reader] = psutil.Process(finder._pid).children()
    child = os.pidfd_open(reader.pid)
    finder.close()
    assert select.select([child], [], [], LONG)[0], "it is still there"
    os.close(child)
    os.close(writer)


def test_it_ends_with_the_agent(host: Host) -> None:
    finder = Finder(driver(UNITS), host)
    Heard(finder).next()
    os.close(finder._alive)
    assert os.waitstatus_to_exitcode(os.waitpid(finder._pid, 0)[1]) == 0
    finder._alive = os.open(os.devnull, os.O_RDONLY)
    finder.close()


@pytest.mark.parametrize(
    ("device", "subsystems"),
    [
        (UNITS, ["pci", "platform"]),
        (EDU | {"give": {"nodes": {"class": "misc"}}}, ["misc", "pci", "platform"]),
        (
            {
                "resource": "example.com/port",
                "discover": {"sysfs": ["class/fpga/*/intel-fpga-port.*", "bus/usb/devices/*"]},
            },
            ["fpga", "pci", "platform", "usb"],
        ),
        ({"resource": "example.com/all", "discover": {"sysfs": ["devices/*"]}}, []),
        ({"resource": "example.com/camera", "discover": {"nodes": ["/dev/video*"]}}, []),
    ],
)
def test_it_hears_only_of_what_may_concern_the_devices(
    device: dict[str, Any], subsystems: list[str]
) -> None:
    assert list(_subsystems(driver(device).spec.devices)) == subsystems
