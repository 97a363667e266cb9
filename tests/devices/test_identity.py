"""Ids of devices."""

from __future__ import annotations

from pathlib import Path

from nodeside.devices.identity import device_ids, pci_address, short_address

BUS = Path("/sys/devices/pci0000:3a/0000:3a:00.0")


def test_the_nearest_pci_function_names_a_device() -> None:
    port = BUS / "0000:3b:00.0" / "fpga_region" / "region0" / "dfl-port.0"
    assert pci_address(port) == "0000:3b:00.0"
    assert pci_address(port.parents[2]) == "0000:3b:00.0"
    assert pci_address(Path("/sys/devices/platform/dfl-port.0")) == ""


def test_an_address_stays_hexadecimal_and_keeps_a_domain_that_matters() -> None:
    """Read as decimal, 5e:00.0 and af:00.0 would both be 00:00.0."""
    assert short_address("0000:5e:00.0") == "5e:00.0"
    assert short_address("10000:af:00.0") == "10000:af:00.0"
    assert short_address("0001:af:00.0") == "0001:af:00.0"


def test_two_ports_of_one_function_stay_two_whatever_their_numbers_are_in_this_boot() -> None:
    def ids(first: int) -> list[str]:
        ports = [BUS / f"fpga_region/region0/dfl-port.{first + more}" for more in range(11)]
        by_path = device_ids(reversed(ports))
        return [by_path[port] for port in ports]

    expected = ["3a:00.0", *(f"3a:00.0-{number}" for number in range(2, 12))]
    assert ids(0) == expected
    assert ids(7) == expected


def test_what_has_no_pci_function_is_called_by_its_name() -> None:
    plain = Path("/sys/devices/virtual/misc/edu control\n")
    nested = Path("/sys/devices/platform/one/port"), Path("/sys/devices/platform/two/port")
    assert device_ids([plain]) == {plain: "edu-control-"}
    assert device_ids(nested) == {nested[0]: "port", nested[1]: "port-2"}


def test_no_id_is_longer_than_the_kubelet_takes() -> None:
    paths = [Path("/sys/devices") / str(number) / ("x" * 255) for number in range(1000)]
    ids = set(device_ids(paths).values())
    assert len(ids) == 1000
    assert max(map(len, ids)) <= 63
