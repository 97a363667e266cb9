"""examples/fpga on the sysfs trees of Intel's two drivers: what an emulated card cannot show.

The trees are those of the kernel's Documentation/fpga/dfl.rst and Documentation/ABI/testing, and
of the OPAE driver before it. A real kernel shows both layouts in tests/vm/test_fpga.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nodeside.device_agent.allocation import ContainerGrant, make_grant
from nodeside.device_agent.inventory import Inventory
from nodeside.devices import discovery
from nodeside.devices.discovery import FoundDevices
from nodeside.spec import load
from nodeside.system.host import Host
from tests.driver.fakes.kernel import link, write

AFU = "d8424dc4a4a3c413f89e433683f9040b"
CRASHED = "f" * 32
[ENTRY] = load(Path(__file__).parents[2] / "examples/fpga/driver.yaml").spec.devices

Add = Callable[..., Path]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "sys").mkdir()
    (tmp_path / "dev").mkdir()
    return Host(tmp_path)


def card(host: Host, address: str, *, numa_node: int = 0) -> Path:
    real = host.sys / "devices/pci0000:00/0000:00:02.0" / address
    for name, text in {"vendor": "0x8086", "device": "0x09c4", "class": "0x120000"}.items():
        write(real / name, f"{text}\n")
    write(real / "numa_node", f"{numa_node}\n")
    link(host.sys / "bus/pci/devices" / address, real)
    return real


def port_below(parent: Path, name: str, number: int, afu_id: str) -> Path:
    """A port as both drivers show it; `afu_id` is the whole file, "" for none."""
    port = parent / f"{name}.{number}"
    uevent = f"MAJOR=244\nMINOR={number}\nDEVNAME={port.name}\nDRIVER={name}\n"
    files = {"dev": f"244:{number}\n", "id": "0\n", "uevent": uevent, "errors/errors": "0x0\n"}
    for file, text in files.items():
        write(port / file, text)
    if afu_id:
        write(port / "afu_id", afu_id)
    return port


def opae(
    host: Host, address: str, number: int = 0, *, fme: bool = True, afu_id: str = f"{AFU}\n"
) -> Path:
    """A card of the OPAE driver; a virtual function has no FME."""
    function = card(host, address)
    device = function / "fpga" / f"intel-fpga-dev.{number}"
    link(device / "device", function)
    if fme:
        write(device / f"intel-fpga-fme.{number}/uevent", f"DEVNAME=intel-fpga-fme.{number}\n")
        write(device / f"intel-fpga-fme.{number}/dev", f"245:{number}\n")
    link(host.sys / "class/fpga" / device.name, device)
    return port_below(device, "intel-fpga-port", number, afu_id)


def dfl(
    host: Host,
    address: str,
    number: int = 0,
    *,
    afu_id: str = f"{AFU}\n",
    numa_node: int = 0,
) -> Path:
    """A card of the DFL driver, with two regions that can be programmed nested in its own."""
    function = card(host, address, numa_node=numa_node)
    region = function / "fpga_region" / f"region{number}"
    link(region / "device", function)
    fme = region / f"dfl-fme.{number}"
    write(fme / "uevent", f"DEVNAME={fme.name}\n")
    write(fme / "dev", f"244:{100 + number}\n")
    for nested in (10 * number + 4, 10 * number + 5):
        inner = fme / f"dfl-fme-region.{nested}" / "fpga_region" / f"region{nested}"
        write(inner / "compat_id", "69528db6eb31577a8c3668f9faa081f6\n")
        link(host.sys / "class/fpga_region" / inner.name, inner)
    link(host.sys / "class/fpga_region" / region.name, region)
    return port_below(region, "dfl-port", number, afu_id)


def discover(host: Host) -> FoundDevices:
    return discovery.discover_devices(host, ENTRY)


def ids(found: FoundDevices) -> list[str]:
    return [each.id for each in found.devices]


def whys(found: FoundDevices) -> dict[str, str]:
    return {each.id: each.why for each in found.devices}


def container(found: FoundDevices) -> ContainerGrant:
    """What a container gets that asked for all of them."""
    inventory = Inventory(ENTRY.resource, ENTRY.shares)
    inventory.update(found, 0.0)
    return make_grant(ENTRY.give, inventory.known.offered, ids(found))


both = pytest.mark.parametrize(("add", "name"), [(opae, "intel-fpga-port"), (dfl, "dfl-port")])


@both
def test_two_cards_are_two_devices_with_their_addresses_and_their_nodes(
    host: Host, add: Add, name: str
) -> None:
    """Read as decimal, both addresses would be 00:00.0, and one card would be lost."""
    add(host, "0000:af:00.0", 0)
    add(host, "0000:5e:00.0", 1)

    found = discover(host)

    assert found.notes == ()
    assert [(each.id, each.address) for each in found.devices] == [
        ("5e:00.0", "5e:00.0"),
        ("af:00.0", "af:00.0"),
    ]
    assert [each.attributes for each in found.devices] == [{"afu_id": AFU}] * 2
    assert whys(found) == {"5e:00.0": "", "af:00.0": ""}
    assert container(found) == ContainerGrant(
        (f"/dev/{name}.1", f"/dev/{name}.0"),
        {
            "ACCELERATOR_DEVICES": "5e:00.0,af:00.0",
            "ACCELERATOR_UNITS": "5e:00.0,af:00.0",
            "ACCELERATOR_NODES": f"/dev/{name}.1,/dev/{name}.0",
        },
    )


def test_cards_of_both_drivers_may_be_in_one_node(host: Host) -> None:
    opae(host, "0000:5e:00.0")
    dfl(host, "0000:af:00.0")
    assert container(discover(host)).nodes == ("/dev/intel-fpga-port.0", "/dev/dfl-port.0")


@both
def test_a_domain_that_is_not_0000_stays_in_the_id(host: Host, add: Add, name: str) -> None:
    add(host, "0000:5e:00.0", 0)
    add(host, "0001:5e:00.0", 1)
    found = discover(host)
    assert ids(found) == ["0001:5e:00.0", "5e:00.0"]
    assert container(found).environment["ACCELERATOR_DEVICES"] == "0001:5e:00.0,5e:00.0"
    assert container(found).nodes == (f"/dev/{name}.1", f"/dev/{name}.0")


def test_the_port_of_a_virtual_function_needs_no_fme(host: Host) -> None:
    """With SR-IOV the FME stays with the physical function: intel-device-plugins issue 372."""
    physical = opae(host, "0000:04:00.0", 0)
    for file in ("dev", "uevent", "afu_id", "id", "errors/errors"):
        (physical / file).unlink()
    (physical / "errors").rmdir()
    physical.rmdir()
    opae(host, "0000:04:00.1", 1, fme=False)

    found = discover(host)

    assert whys(found) == {"04:00.1": ""}
    assert container(found).nodes == ("/dev/intel-fpga-port.1",)


def test_a_nested_region_is_no_device(host: Host) -> None:
    dfl(host, "0000:5e:00.0")
    listed = {path.name for path in (host.sys / "class/fpga_region").iterdir()}
    assert listed == {"region0", "region4", "region5"}
    assert ids(discover(host)) == ["5e:00.0"]


def test_two_ports_of_one_card_stay_two(host: Host) -> None:
    """The second is not the card's number: intel-device-plugins issue 113."""
    first = dfl(host, "0000:5e:00.0")
    port_below(first.parent, "dfl-port", 7, AFU)

    found = discover(host)

    assert ids(found) == ["5e:00.0", "5e:00.0-2"]
    assert [each.nodes for each in found.devices] == [("/dev/dfl-port.0",), ("/dev/dfl-port.7",)]
    assert container(found).environment["ACCELERATOR_DEVICES"] == "5e:00.0"


@both
def test_a_crashed_card_is_unhealthy_and_no_other(host: Host, add: Add, name: str) -> None:
    add(host, "0000:5e:00.0", 0)
    add(host, "0000:af:00.0", 1, afu_id=f"{CRASHED}\n")
    add(host, "0000:b0:00.0", 2, afu_id="ffffffff-ffff-ffff-ffff-ffffffffffff\n")
    add(host, "0000:b1:00.0", 3, afu_id=f"{CRASHED[:-1]}e\n")

    assert whys(discover(host)) == {
        "5e:00.0": "",
        "af:00.0": f"afu_id says '{CRASHED}', not a match of [0-9a-eA-E]",
        "b0:00.0": "afu_id says 'ffffffff-ffff-ffff-ffff-ffffffffffff', not a match of [0-9a-eA-E]",
        "b1:00.0": "",
    }, name


@both
def test_a_port_without_an_afu_is_unhealthy_and_no_other(host: Host, add: Add, name: str) -> None:
    """It cannot compute. While it is being programmed, reading fails with EBUSY."""
    add(host, "0000:5e:00.0", 0, afu_id="")
    add(host, "0000:af:00.0", 1)

    found = discover(host)

    assert [each.attributes for each in found.devices] == [{}, {"afu_id": AFU}]
    assert whys(found) == {
        "5e:00.0": "afu_id says nothing, not a match of [0-9a-eA-E]",
        "af:00.0": "",
    }, name


@both
def test_a_nul_in_the_afu_id_is_no_part_of_it(host: Host, add: Add, name: str) -> None:
    add(host, "0000:5e:00.0", 0, afu_id=f"{AFU}\n\0")
    add(host, "0000:af:00.0", 1, afu_id=f"{CRASHED}\0\n")
    good, crashed = discover(host).devices
    assert (good.attributes, good.why) == ({"afu_id": AFU}, "")
    assert crashed.why.startswith(f"afu_id says '{CRASHED}', not"), name


def test_a_card_without_a_numa_node_has_none(host: Host) -> None:
    dfl(host, "0000:5e:00.0", 0, numa_node=-1)
    dfl(host, "0000:af:00.0", 1, numa_node=1)
    assert [each.numa_node for each in discover(host).devices] == [-1, 1]


def test_a_node_without_the_driver_is_told_so(host: Host) -> None:
    card(host, "0000:5e:00.0")
    write(host.sys / "class/misc/uevent", "")
    found = discover(host)
    assert found.devices == ()
    [note] = found.notes
    assert note == "; ".join(
        f"there is no /sys/class/{name}: is the driver loaded?" for name in ("fpga", "fpga_region")
    )
