"""Devices found in trees like those of sysfs; real ones are in tests/vm/test_running.py."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeside.devices import discovery
from nodeside.devices.discovery import FoundDevice, FoundDevices
from nodeside.spec.devices import Device
from nodeside.spec.mistakes import Document
from nodeside.spec.reader import Reader
from nodeside.spec.schema import shape_of
from nodeside.system import child, sysfs
from nodeside.system.host import Host
from nodeside.system.pci import pci_devices
from tests.driver.fakes.kernel import add_pci_device, link, write

PCI = {"vendor": "1234", "device": "11e8", "driver": "edu"}
ROOT = "pci0000:00"


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
    return discovery.discover_devices(host, device, not_ready=not_ready)


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
        FoundDevice("00:05.0", "00:05.0", ("/dev/edu0",), -1, {"count": "0"}, pci_root=ROOT),
        FoundDevice("00:06.0", "00:06.0", ("/dev/edu1",), 0, {"count": "1"}, pci_root=ROOT),
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


def test_the_health_file_may_be_matched_by_an_expression(host: Host) -> None:
    for number, text in enumerate(("temperature 41\n", "temperature 99\n", "")):
        real = add_edu(host, f"0000:00:0{number + 5}.0", number)
        if text:
            write(real / "state", text)

    expression = {"path": "state", "matches": "temperature [0-8]"}
    found = discover(host, discover={"pci": [PCI]}, health=expression)

    assert [each.why for each in found.devices] == [
        "",
        "state says 'temperature 99', not a match of temperature [0-8]",
        "state says nothing, not a match of temperature [0-8]",
    ]


@pytest.mark.slow
def test_a_text_that_an_expression_does_not_end_with_costs_its_own_device_only(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeside.devices.health._TOGETHER", 0.3)
    for number, text in enumerate(("aaa", "a" * 60 + "!", "aaaa")):
        write(add_edu(host, f"0000:00:0{number + 5}.0", number) / "state", text)

    expression = {"path": "state", "matches": "^(a+)+$"}
    found = discover(host, discover={"pci": [PCI]}, health=expression)

    first, second, third = (each.why for each in found.devices)
    assert (first, third) == ("", "")
    assert second.startswith("state cannot be judged: the regular expression did not finish")


@pytest.mark.slow
def test_when_others_took_all_the_time_a_text_is_not_judged(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeside.devices.health._TOGETHER", 0.1)
    monkeypatch.setattr("nodeside.devices.health._PATIENCE", 0.3)
    for number in range(4):
        text = "a" * (60 + number) + "!"
        write(add_edu(host, f"0000:00:0{number + 5}.0", number) / "state", text)

    expression = {"path": "state", "matches": "^(a+)+$"}
    found = discover(host, discover={"pci": [PCI]}, health=expression)

    assert all(not each.healthy for each in found.devices)
    assert found.devices[-1].why == "state was not judged, since others took 0.3 s"


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
            {"sysfs": ["class/fpga/intel-fpga-dev.*/intel-fpga-port.*", "class/fpga/a/b"]},
            "there is no /sys/class/fpga: is the driver loaded?",
        ),
    ],
)
def test_who_finds_nothing_is_told_what_is_missing(
    host: Host, where: dict[str, Any], note: str
) -> None:
    write(host.sys / "class" / "misc" / "uevent", "")
    assert discover(host, discover=where) == FoundDevices("example.com/edu", (), (note,))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deadlines that a test can wait for; what hangs then ends with the test."""
    monkeypatch.setattr(discovery, "_TOGETHER", 1.5)
    monkeypatch.setattr(discovery, "_ALONE", 1.5)
    yield
    child.kill_left_behind()


@pytest.mark.usefixtures("quick")
def test_an_attribute_that_hangs_makes_its_device_unhealthy_and_no_other(host: Host) -> None:
    for number in range(3):
        liveness = add_edu(host, f"0000:00:0{number + 5}.0", number) / "liveness"
        if number == 1:
            os.mkfifo(liveness)  # nobody writes
        else:
            write(liveness, "ok\n")
    health = {"path": "liveness", "value": "ok"}
    found = discover(host, discover={"pci": [PCI]}, health=health)

    first, second, third = (each.why for each in found.devices)
    assert (first, third) == ("", "")
    assert second.startswith("reading ")
    assert "did not end" in second


@pytest.mark.usefixtures("quick")
def test_when_others_took_all_the_time_a_device_is_not_read(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "PATIENCE", 0.5)
    for number in range(4):
        os.mkfifo(add_edu(host, f"0000:00:0{number + 5}.0", number) / "liveness")
    health = {"path": "liveness", "value": "ok"}
    found = discover(host, discover={"pci": [PCI]}, health=health)

    assert all(not each.healthy for each in found.devices)
    assert found.devices[-1].why == "not read, since others took 0.5 s to be read"


@pytest.mark.usefixtures("quick")
def test_a_uevent_that_hangs_costs_its_device_the_node_only(host: Host) -> None:
    for number in range(2):
        add_edu(host, f"0000:00:0{number + 5}.0", number)
    uevent = host.sys / "class/misc/edu0/uevent"
    uevent.unlink()
    os.mkfifo(uevent)
    found = discover(host, discover={"pci": [PCI]}, give={"nodes": {"class": "misc"}})
    assert [each.nodes for each in found.devices] == [(), ("/dev/edu1",)]


def test_a_match_that_has_a_device_node_itself_is_given_it(host: Host) -> None:
    """As a port of an FPGA, which is in no class: Documentation/fpga/dfl.rst."""
    function = add_pci_device(host, "0000:5e:00.0", "8086", "bcce", "dfl-pci")
    port = function / "fpga_region" / "region0" / "dfl-port.0"
    write(port / "uevent", "MAJOR=240\nMINOR=1\nDEVNAME=dfl-port.0\nDRIVER=dfl-afu\n")
    write(port / "dev", "240:1\n")
    link(host.sys / "class/fpga_region/region0", port.parent)
    found = discover(host, discover={"sysfs": ["class/fpga_region/region*/dfl-port.*"]})
    assert [each.nodes for each in found.devices] == [("/dev/dfl-port.0",)]


def test_a_star_in_an_attribute_stands_for_the_one_file_there_is(host: Host) -> None:
    real = add_edu(host, "0000:00:05.0", 0)
    write(real / "hwmon/hwmon7/temp1_input", "41000\n")
    entry = [
        {"name": "heat", "path": "hwmon/hwmon*/temp1_input"},
        {"name": "many", "path": "*/*/uevent"},
    ]
    write(real / "misc/edu1/uevent", "")
    [device] = discover(host, discover={"pci": [PCI]}, attributes=entry).devices
    assert device.attributes == {"heat": "41000"}


def test_a_function_that_two_entries_match_is_good_if_one_says_so(host: Host) -> None:
    add_edu(host, "0000:00:05.0", 0, driver="edu2")
    two = [PCI, PCI | {"driver": "edu2"}]
    assert [each.why for each in discover(host, discover={"pci": two}).devices] == [""]


def test_a_device_that_goes_while_it_is_looked_at_is_unhealthy(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = add_edu(host, "0000:00:05.0", 0)
    write(real / "interrupts", "1\n")
    read = sysfs.read_attributes

    def read_last(*paths: Path, **more: Any) -> tuple[str | None, ...]:
        said = read(*paths, **more)
        shutil.rmtree(real)
        return said

    monkeypatch.setattr(sysfs, "read_attributes", read_last)
    entry = [{"name": "count", "path": "interrupts"}]
    [device] = discover(host, discover={"pci": [PCI]}, attributes=entry).devices
    assert device.why == "it disappeared"


def test_a_function_that_is_being_removed_is_no_second_device(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its link in bus/pci/devices goes first, then its driver, its directory and what links to it
    (device_del in drivers/base/core.c)."""
    real = add_edu(host, "0000:00:05.0", 0)
    listed, gone = pci_devices(host), host.sys / "bus/pci/devices/0000:00:05.0"
    link(real / "misc/edu0/device", real)
    gone.unlink()
    [device] = discover(host, discover={"sysfs": ["class/misc/*/device"]}).devices
    assert (device.id, device.address, device.pci_root) == ("00:05.0", "00:05.0", ROOT)

    monkeypatch.setattr(discovery, "pci_devices", lambda _: listed)
    two = [PCI, PCI | {"driver": "edu2"}]
    assert discover(host, discover={"pci": two}).devices == (), "listed, and removed since"
    link(gone, real)
    assert [each.id for each in discover(host, discover={"pci": two}).devices] == ["00:05.0"]


def test_a_pattern_beyond_reason_is_one_note(host: Host) -> None:
    for number in range(discovery.MOST + 1):
        (host.sys / "class" / "many" / f"port{number}").mkdir(parents=True)
    found = discover(host, discover={"sysfs": ["class/many/port*"]})
    assert found.devices == ()
    assert "matches more than 4096 paths" in found.notes[0]
    long = discover(host, discover={"sysfs": ["class/" + "x" * 300]})
    assert long.notes == ("there is no /sys/class/" + "x" * 300 + ": is the driver loaded?",)


def test_a_link_out_of_sysfs_leads_to_no_device(host: Host) -> None:
    write(host.root / "etc" / "hostname", "secret\n")
    link(host.sys / "class" / "edu" / "out", host.root / "etc")
    assert discover(host, discover={"sysfs": ["class/edu/*"]}).devices == ()


def test_an_attribute_of_a_mebibyte_is_cut(host: Host) -> None:
    write(add_edu(host, "0000:00:05.0", 0) / "name", "x" * (1 << 20))
    entry = [{"name": "name", "path": "name"}]
    [device] = discover(host, discover={"pci": [PCI]}, attributes=entry).devices
    assert device.attributes == {"name": "x" * 256}


@pytest.mark.slow
def test_thousands_of_matches_are_cut_and_said(host: Host) -> None:
    directory = host.sys / "devices" / "many"
    for number in range(5000):
        (directory / f"port{number}").mkdir(parents=True)
    link(host.sys / "class" / "many", directory)
    patterns = [f"class/many/port{first}*" for first in range(10)]
    found = discover(host, discover={"sysfs": patterns})
    assert len(found.devices) == discovery.MOST
    assert found.notes == ("more than 4096 match; those after that are left out",)


def test_a_device_without_its_node_is_unhealthy(host: Host) -> None:
    """As while `probe` of its driver has not ended."""
    add_pci_device(host, "0000:00:05.0", "1234", "11e8", "edu")
    [found] = discover(host, discover={"pci": [PCI]}, give={"nodes": {"class": "misc"}}).devices
    assert found.why == "it has no device node of class misc"
