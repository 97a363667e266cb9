"""Ids of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.devices.identity import (
    DeviceIds,
    natural_key,
    pci_function,
    pci_root,
    short_address,
)

CARD, USB = "0000:3a:00.0", "0000:00:14.0"
DEVICES = Path("/sys/devices")
BUS = DEVICES / "pci0000:00"


def ids_of(paths: list[Path]) -> list[str]:
    by_path = DeviceIds().assign_ids(reversed(paths))
    return [by_path[path] for path in paths]


def test_the_nearest_pci_function_names_a_device() -> None:
    assert pci_function(BUS / CARD / "fpga_region" / "region0") == CARD
    assert pci_function(BUS / CARD) == CARD
    assert pci_function(BUS / "0000:00:01.1" / CARD / "port") == CARD, "what is behind a bridge"
    assert pci_function(DEVICES / "pci10000:e0" / "10000:e0:06.0" / "port") == "10000:e0:06.0"
    assert pci_function(DEVICES / "platform/dfl-port.0") == ""
    assert pci_function(BUS / "0000:00:01.1:pcie004") == "", "a service of a port is no function"


def test_the_root_is_that_of_the_tree_a_device_is_in() -> None:
    assert pci_root(BUS / "0000:00:01.1" / CARD / "port") == "pci0000:00"
    assert pci_root(DEVICES / "LNXSYSTM:00/PNP0A08:00/pci10000:e0" / CARD) == "pci10000:e0"
    assert pci_root(DEVICES / "platform/dfl-port.0") == ""


def test_an_address_stays_hexadecimal_and_keeps_a_domain_that_matters() -> None:
    """Read as decimal, 5e:00.0 and af:00.0 would both be 00:00.0."""
    assert short_address("0000:5e:00.0") == "5e:00.0"
    assert short_address("10000:af:00.0") == "10000:af:00.0"
    assert short_address("0001:af:00.0") == "0001:af:00.0"


@pytest.mark.parametrize("first", [0, 7])
def test_two_ports_of_one_function_stay_two_whatever_their_numbers_are_in_this_boot(
    first: int,
) -> None:
    region = BUS / CARD / "fpga_region" / f"region{first}"
    ports = [region / f"dfl-port.{first + more}" for more in range(11)]
    assert ids_of(ports) == ["3a:00.0", *(f"3a:00.0-{number}" for number in range(2, 12))]


PORTS = [BUS / CARD / f"dfl-port.{number}" for number in range(5)]


def test_who_stays_keeps_the_id_and_who_is_new_gets_a_free_one() -> None:
    """A port may go to a virtual function while the others stay."""
    ids = DeviceIds()
    first = ids.assign_ids(PORTS[:3])
    assert [first[path] for path in PORTS[:3]] == ["3a:00.0", "3a:00.0-2", "3a:00.0-3"]
    left = ids.assign_ids(PORTS[1:3])
    assert left == {PORTS[1]: "3a:00.0-2", PORTS[2]: "3a:00.0-3"}
    assert ids.assign_ids(PORTS[1:]) == {**left, PORTS[3]: "3a:00.0", PORTS[4]: "3a:00.0-4"}


def test_who_comes_back_gets_the_id_it_had_unless_another_has_it_now() -> None:
    """In whatever order the driver comes to them."""
    ids = DeviceIds()
    ids.assign_ids(PORTS[:2])
    ids.assign_ids([])
    assert ids.assign_ids([PORTS[1]]) == {PORTS[1]: "3a:00.0-2"}
    assert ids.assign_ids([PORTS[1], PORTS[4]]) == {PORTS[1]: "3a:00.0-2", PORTS[4]: "3a:00.0"}
    assert ids.assign_ids([PORTS[0], PORTS[4]]) == {PORTS[0]: "3a:00.0-2", PORTS[4]: "3a:00.0"}
    assert ids.assign_ids(PORTS[:2]) == {PORTS[0]: "3a:00.0-2", PORTS[1]: "3a:00.0"}


@pytest.mark.slow
def test_a_driver_that_counts_on_at_each_load_changes_no_id_and_fills_no_memory() -> None:
    ids = DeviceIds()
    for number in range(5000):
        assert list(ids.assign_ids([BUS / CARD / f"port.{number}"]).values()) == ["3a:00.0"]
    assert len(ids._known) < 4100


def test_a_device_on_usb_is_named_by_its_port() -> None:
    """So that another one is not given when the first is unplugged."""
    bus = BUS / USB
    one = bus / "usb1/1-3/1-3:1.0/video4linux/video0"
    two = bus / "usb1/1-4/1-4.2/1-4.2:1.0/video4linux/video1"
    assert ids_of([one, two]) == ["00:14.0-usb3", "00:14.0-usb4.2"]
    assert ids_of([two]) == ["00:14.0-usb4.2"]


def test_what_has_no_pci_function_is_called_by_its_name() -> None:
    plain = DEVICES / "virtual/misc/edu control\n"
    assert ids_of([plain]) == ["edu-control-"]


def test_no_two_devices_have_one_id() -> None:
    names = ("a/port", "b/port", "c/port-2", "d/port01", "d/port1", "e/port-2-2", "f/port-2")
    ids = ids_of([DEVICES / name for name in names])
    assert len(set(ids)) == len(names)
    assert ids[:3] == ["port", "port-3", "port-2"]


def test_the_order_is_that_of_the_numbers_and_always_the_same() -> None:
    mixed = ["port.10-10", "port.2", "port.10-2", "port.10"]
    assert sorted(mixed, key=natural_key) == ["port.2", "port.10", "port.10-2", "port.10-10"]
    assert sorted(["1", "01"], key=natural_key) == sorted(["01", "1"], key=natural_key)


def test_no_id_is_longer_than_the_kubelet_takes() -> None:
    paths = [DEVICES / str(number) / ("x" * 255) for number in range(1000)]
    ids = ids_of(paths)
    assert len(set(ids)) == 1000
    assert max(map(len, ids)) <= 63
