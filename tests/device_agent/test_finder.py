"""The threads that look for devices."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from nodeside.device_agent.finder import Finder, News, _watched_subsystems
from nodeside.devices.discovery import FoundDevices
from nodeside.protocol.ready_file import clear_ready
from nodeside.system.host import Host
from tests.device_agent.node import driver, say_ready
from tests.driver.fakes.kernel import add_pci_device, link, write
from tests.patience import patience

LONG = patience(60.0)  # seconds
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

    def __init__(self, host: Host, *devices: dict[str, Any], **more: Any) -> None:
        self._news: News = SimpleQueue()
        self.finder = Finder(driver(*devices), host, self._news, **more)

    def next(self) -> FoundDevices:
        found = self._news.get(timeout=LONG)
        assert isinstance(found, FoundDevices), found
        return found

    def until(self, resource: str, why: str) -> FoundDevices:
        while True:
            found = self.next()
            if found.resource == resource and {each.why for each in found.devices} == {why}:
                return found


Hear = Callable[..., Heard]


@pytest.fixture
def hear(host: Host) -> Iterator[Hear]:
    with ExitStack() as stack:

        def start(*devices: dict[str, Any], needs_driver: bool = True) -> Heard:
            heard = Heard(host, *devices, needs_driver=needs_driver)
            stack.callback(heard.finder.close)
            return heard

        yield start


@pytest.fixture
def heard(host: Host, hear: Hear) -> Heard:
    real = add_pci_device(host, "0000:00:05.0", "1234", "11e8", "edu")
    write(real / "liveness", "ok\n")
    health = {"path": "liveness", "value": "ok", "intervalSeconds": 1}
    return hear(EDU | {"health": health}, UNITS)


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


def test_without_a_driver_of_ours_none_is_waited_for(host: Host, hear: Hear) -> None:
    clear_ready(host, "edu")
    heard = hear(UNITS, needs_driver=False)
    assert [each.why for each in heard.next().devices] == ["", ""]


def test_a_finder_that_starts_again_gives_no_device_the_id_of_one_that_went(host: Host) -> None:
    real = add_pci_device(host, "0000:00:05.0", "1234", "11e8", "edu")
    for name in ("port.0", "port.1"):
        write(real / name / "uevent", "")
        link(host.sys / "class" / "port" / name, real / name)
    ports = {"resource": "example.com/port", "discover": {"sysfs": ["class/port/*"]}}
    for expected in (["00:05.0", "00:05.0-2"], ["00:05.0-2"]):
        heard = Heard(host, ports, state=host.root / "state")
        assert [each.id for each in heard.next().devices] == expected
        heard.finder.close()
        shutil.rmtree(real / "port.0", ignore_errors=True)
        (host.sys / "class" / "port" / "port.0").unlink(missing_ok=True)


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


def test_a_device_whose_files_hang_delays_no_other_resource(host: Host, hear: Hear) -> None:
    real = add_pci_device(host, "0000:00:05.0", "1234", "11e8", "edu")
    os.mkfifo(real / "liveness")  # nobody ever writes: a read hangs, as in a driver's code
    health = {"path": "liveness", "value": "ok"}
    assert hear(EDU | {"health": health}, UNITS).next().resource == "example.com/unit"


def test_a_device_keeps_its_id_when_one_before_it_goes(host: Host, hear: Hear) -> None:
    function = host.sys / "devices/pci0000:00/0000:00:05.0"
    for number in range(2):
        write(function / f"port{number}" / "liveness", "ok\n")
    health = {"path": "liveness", "value": "ok", "intervalSeconds": 1}
    ports = {"sysfs": ["devices/pci0000:00/0000:00:05.0/port*"]}
    heard = hear({"resource": "example.com/edu", "discover": ports, "health": health})
    assert [each.id for each in heard.next().devices] == ["00:05.0", "00:05.0-2"]
    shutil.rmtree(function / "port0")
    while len(left := heard.next().devices) == 2:
        pass
    assert [each.id for each in left] == ["00:05.0-2"]


def test_a_look_says_whether_the_driver_was_ready(host: Host, hear: Hear) -> None:
    clear_ready(host, "edu")
    heard = hear(EDU)
    assert not heard.next().is_ready, "there may be devices, once it is"
    say_ready(host)
    while not heard.next().is_ready:
        pass


def test_what_ends_a_thread_is_news(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> FoundDevices:
        raise ZeroDivisionError

    monkeypatch.setattr("nodeside.device_agent.finder.discover_devices", broken)
    news: News = SimpleQueue()
    finder = Finder(driver(UNITS), host, news)
    assert isinstance(news.get(timeout=LONG), ZeroDivisionError)
    finder.close()


def test_its_threads_end_with_it(host: Host) -> None:
    before = set(threading.enumerate())
    finder = Finder(driver(UNITS), host, SimpleQueue())
    threads = set(threading.enumerate()) - before
    assert len(threads) == 2
    finder.close()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


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
    assert list(_watched_subsystems(driver(device).spec.devices)) == subsystems
