"""Devices found in trees like those of sysfs; real ones are in tests/vm/test_devices.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nodeside import sysfs
from nodeside.devices import discovery
from nodeside.devices.discovery import FoundDevice, FoundDevices
from nodeside.errors import SystemRefused
from nodeside.host import Host
from nodeside.spec.devices import Device
from nodeside.spec.mistakes import Document
from nodeside.spec.reader import Reader
from nodeside.spec.schema import shape_of
from tests.driver.fakes.kernel import add_pci_device, link, write

PCI = {"vendor": "1234", "device": "11e8", "driver": "edu"}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for directory in ("sys", "dev"):
        (tmp_path / directory).mkdir()
    return Host(tmp_path)


def discover(host: Host, *, not_ready: str = "", **entry: Any) -> FoundDevices:
    """As driver.yaml has it, without the resource."""
    document = {"resource": "example.com/edu", **entry}
    reader = Reader(Document("driver.yaml", document))
    device = reader.read(shape_of(Device), document, ())
    assert reader.mistakes == []
    return discovery.discover(host, device, not_ready=not_ready)


def add_edu(host: Host, address: str, number: int, *, driver: str = "edu") -> Path:
    """An edu device with its misc device."""
    real = add_pci_device(host, address, "1234", "11e8", driver)
    if driver:
        node = real / "misc" / f"edu{number}"
        write(node / "uevent", f"MAJOR=10\nMINOR={number}\nDEVNAME=edu{number}\n")
        link(host.sys / "class" / "misc" / f"edu{number}", node)
    return real


def test_each_pci_function_is_a_device_with_its_nodes_and_its_attributes(host: Host) -> None:
    for number, address in enumerate(("0000:00:05.0", "0000:00:06.0")):
        real = add_edu(host, address, number)
        write(real / "numa_node", f"{number - 1}\n")
        write(real / "interrupts", f"{number}\n\0")
    add_pci_device(host, "0000:00:07.0", "8086", "1237")

    found = discover(
        host,
        discover={"pci": [PCI]},
        give={"nodes": {"class": "misc"}},
        attributes=[{"name": "count", "path": "interrupts"}, {"name": "none", "path": "none"}],
    )

    assert found.notes == ()
    assert found.devices == (
        FoundDevice("00:05.0", "00:05.0", ("/dev/edu0",), -1, {"count": "0"}),
        FoundDevice("00:06.0", "00:06.0", ("/dev/edu1",), 0, {"count": "1"}),
    )


@pytest.mark.parametrize(("driver", "bound"), [("", "no driver"), ("vfio-pci", "vfio-pci")])
def test_a_function_that_another_driver_has_is_unhealthy(
    host: Host, driver: str, bound: str
) -> None:
    add_edu(host, "0000:00:05.0", 0)
    add_edu(host, "0000:00:06.0", 1, driver=driver)

    first, second = discover(host, discover={"pci": [PCI]}).devices

    assert first.healthy
    assert second.why == f"bound to {bound}, not to edu"
    assert discover(host, discover={"pci": [PCI | {"driver": "vfio-pci"}]}).devices[0].why


def test_the_health_file_says_whether_a_device_works(host: Host) -> None:
    for number, text in enumerate(("ok\n", "hung\n", "")):
        real = add_edu(host, f"0000:00:0{number + 5}.0", number)
        if text:
            write(real / "liveness", text)

    health = {"path": "liveness", "value": "ok"}
    found = discover(host, discover={"pci": [PCI]}, health=health)

    assert [each.why for each in found.devices] == [
        "",
        "liveness says 'hung', not 'ok'",
        "liveness says nothing, not 'ok'",
    ]


def test_no_device_is_healthy_before_the_driver_is_ready(host: Host) -> None:
    add_edu(host, "0000:00:05.0", 0)
    pci = discover(host, discover={"pci": [PCI]}, not_ready="it builds")
    units = discover(host, discover={"count": 3}, not_ready="it builds")
    assert {each.why for each in (*pci.devices, *units.devices)} == {"it builds"}


def test_units_have_numbers_and_share_a_node(host: Host) -> None:
    nodes = {"nodes": {"path": "/dev/units"}}
    found = discover(host, discover={"count": 11}, give=nodes)
    assert [each.id for each in found.devices] == [str(number) for number in range(11)]
    assert {each.nodes for each in found.devices} == {("/dev/units",)}


def test_a_directory_of_sysfs_is_one_device_however_often_it_matches(host: Host) -> None:
    function = add_pci_device(host, "0000:5e:00.0", "8086", "bcce", "dfl-pci")
    region = function / "fpga_region" / "region0"
    for number in (0, 1):
        write(region / f"dfl-port.{number}" / "uevent", f"DEVNAME=dfl-port.{number}\n")
        link(host.sys / f"class/dfl/port{number}", region / f"dfl-port.{number}")
    write(region / "dfl-port.txt", "a file\n")
    link(host.sys / "class/fpga_region/region0", region)

    patterns = ["class/fpga_region/region*/dfl-port.*", "class/fpga_region/*/dfl-port.0"]
    found = discover(host, discover={"sysfs": patterns}, give={"nodes": {"class": "dfl"}})

    assert [(each.id, each.address, each.nodes) for each in found.devices] == [
        ("5e:00.0", "5e:00.0", ("/dev/dfl-port.0",)),
        ("5e:00.0-2", "5e:00.0", ("/dev/dfl-port.1",)),
    ]


def test_a_node_belongs_to_the_nearest_device_and_no_other(host: Host) -> None:
    outer = add_pci_device(host, "0000:00:05.0", "1234", "11e8", "edu")
    inner = outer / "edu" / "inner"
    write(inner / "uevent", "DEVNAME=inner\n")
    write(outer / "edu" / "plain" / "uevent", "DEVNAME=edu/plain\n")
    write(outer / "edu" / "hostile" / "uevent", "DEVNAME=../etc/shadow\n")
    for name in ("inner", "plain", "hostile"):
        link(host.sys / "class" / "edu" / name, outer / "edu" / name)

    patterns = ["bus/pci/devices/0000:00:05.0", "class/edu/inner"]
    found = discover(host, discover={"sysfs": patterns}, give={"nodes": {"class": "edu"}})

    assert [each.nodes for each in found.devices] == [("/dev/edu/plain",), ("/dev/inner",)]


@pytest.mark.skipif(os.geteuid() != 0, reason="mknod takes root: run the tests as root")
def test_each_device_node_is_a_device_and_a_file_is_none(host: Host) -> None:
    for number in (0, 1, 10):
        os.mknod(host.dev / f"video{number}", 0o20600, os.makedev(81, number))
    write(host.dev / "video-notes", "a file\n")
    function = add_pci_device(host, "0000:00:05.0", "1234", "11e8")
    write(function / "video4linux/video1/uevent", "DEVNAME=video1\n")
    link(host.sys / "dev/char/81:1", function / "video4linux/video1")

    found = discover(host, discover={"nodes": ["/dev/video*"]})

    assert [(each.id, each.nodes) for each in found.devices] == [
        ("00:05.0", ("/dev/video1",)),
        ("video0", ("/dev/video0",)),
        ("video10", ("/dev/video10",)),
    ]


@pytest.mark.parametrize(
    ("where", "note"),
    [
        ({"pci": [PCI, {"vendor": "8086"}]}, "this node has no PCI function 1234:11e8, 8086:*"),
        ({"nodes": ["/dev/video*"]}, "no device node /dev/video*: is the driver loaded?"),
        (
            {"sysfs": ["class/fpga/intel-fpga-dev.*/intel-fpga-port.*"]},
            "there is no /sys/class/fpga: is the driver loaded?",
        ),
    ],
)
def test_who_finds_nothing_is_told_what_is_missing(
    host: Host, where: dict[str, Any], note: str
) -> None:
    write(host.sys / "class" / "misc" / "uevent", "")
    assert discover(host, discover=where) == FoundDevices("example.com/edu", (), (note,))


def test_an_attribute_that_hangs_makes_its_device_unhealthy_and_no_other(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write(add_edu(host, f"0000:00:0{number + 5}.0", number) / "liveness", "ok\n")
    ask = sysfs.ask

    def hang(*paths: Path) -> tuple[str | None, ...]:
        if any("0000:00:06.0" in str(path) for path in paths):
            raise SystemRefused("reading liveness did not end")
        return ask(*paths)

    monkeypatch.setattr(sysfs, "ask", hang)
    health = {"path": "liveness", "value": "ok"}
    found = discover(host, discover={"pci": [PCI]}, health=health)

    assert [each.why for each in found.devices] == ["", "reading liveness did not end", ""]


def test_an_attribute_of_a_mebibyte_is_cut(host: Host) -> None:
    write(add_edu(host, "0000:00:05.0", 0) / "name", "x" * (1 << 20))
    entry = [{"name": "name", "path": "name"}]
    [device] = discover(host, discover={"pci": [PCI]}, attributes=entry).devices
    assert device.attributes == {"name": "x" * 256}


def test_thousands_of_matches_are_cut_and_said(host: Host) -> None:
    directory = host.sys / "devices" / "many"
    for number in range(5000):
        (directory / f"port{number}").mkdir(parents=True)
    link(host.sys / "class" / "many", directory)
    patterns = [f"class/many/port{first}*" for first in range(10)]
    found = discover(host, discover={"sysfs": patterns})
    assert len(found.devices) == discovery.MOST
    assert found.notes == ("more than 4096 match; those after that are left out",)
