"""What a container gets, and which devices it should."""

from __future__ import annotations

import pytest

from nodeside.device_agent.allocation import DeviceUnhealthy, UnknownDevice, make_grant, prefer_ids
from nodeside.device_agent.inventory import Inventory, OfferedDevice
from nodeside.devices.discovery import FoundDevice, FoundDevices
from nodeside.spec.devices import Give

VARIABLES = {"IDS": "{ids}", "BDF": "{bdf}", "NODES": "<{nodes}>", "FIXED": "1"}


def device(name: str, *, numa: int = 0, root: str = "pci0000:00", why: str = "") -> FoundDevice:
    nodes = (f"/dev/{name}", "/dev/control")
    return FoundDevice(name, f"{name}.0", nodes, numa, pci_root=root, why=why)


def offered(*devices: FoundDevice, shares: int = 1) -> dict[str, OfferedDevice]:
    inventory = Inventory("example.com/edu", shares)
    inventory.update(FoundDevices("example.com/edu", devices), 0.0)
    return dict(inventory.known.offered)


def test_a_container_gets_the_nodes_and_the_names_of_its_devices_in_order() -> None:
    found = make_grant(
        Give(environment=VARIABLES), offered(device("a2"), device("a10")), ["a10", "a2"]
    )
    assert found.nodes == ("/dev/a2", "/dev/control", "/dev/a10")
    assert found.environment == {
        "IDS": "a2,a10",
        "BDF": "a2.0,a10.0",
        "NODES": "</dev/a2,/dev/control,/dev/a10>",
        "FIXED": "1",
    }


def test_two_shares_of_a_device_give_it_once() -> None:
    found = make_grant(
        Give(environment=VARIABLES), offered(device("a"), shares=2), ["a::1", "a::0"]
    )
    assert found.environment["IDS"] == "a"
    assert found.nodes == ("/dev/a", "/dev/control")


def test_units_without_an_address_leave_its_variable_empty() -> None:
    units = offered(*(FoundDevice(str(number)) for number in (3, 17)))
    assert make_grant(Give(environment=VARIABLES), units, ["17", "3"]).environment == {
        "IDS": "3,17",
        "BDF": "",
        "NODES": "<>",
        "FIXED": "1",
    }


@pytest.mark.parametrize("wrong", ["b", "", "a::0", "a" * 10000])
def test_a_device_that_is_not_listed_is_not_given(wrong: str) -> None:
    with pytest.raises(UnknownDevice, match="there is no device"):
        make_grant(Give(), offered(device("a")), ["a", wrong])


def test_a_device_that_does_not_work_is_not_given_and_it_says_why() -> None:
    with pytest.raises(DeviceUnhealthy, match="a does not work: bound to no driver"):
        make_grant(Give(), offered(device("a", why="bound to no driver, not to edu")), ["a"])


def test_devices_come_from_the_smallest_root_that_has_enough() -> None:
    near = [device(name, root="pci0000:00") for name in ("a", "b", "c")]
    far = [device(name, numa=1, root="pci0000:80") for name in ("x", "y")]
    all_of = offered(*near, *far)
    ids = list(all_of)
    assert prefer_ids(all_of, ids, [], 2) == ["x", "y"]
    assert prefer_ids(all_of, ids, [], 3) == ["a", "b", "c"]
    assert prefer_ids(all_of, ids, ["c"], 2) == ["c", "a"]
    assert len(prefer_ids(all_of, ids, [], 4)) == 4
    assert prefer_ids(all_of, ["b", "y"], [], 2) == ["b", "y"], "no place has enough"


def test_devices_of_one_numa_node_are_better_than_those_of_two() -> None:
    all_of = offered(
        device("a", numa=0, root="pci0000:00"),
        device("b", numa=1, root="pci0000:40"),
        device("c", numa=1, root="pci0000:80"),
    )
    assert prefer_ids(all_of, ["a", "b", "c"], [], 2) == ["b", "c"]


def test_shares_are_spread_over_devices_and_taken_where_most_are_left() -> None:
    all_of = offered(device("a"), device("b"), shares=3)
    assert prefer_ids(all_of, ["a::2", "b::0", "b::1"], [], 1) == ["b::0"]
    assert prefer_ids(all_of, list(all_of), [], 2) == ["a::0", "b::0"]
    assert prefer_ids(all_of, list(all_of), ["a::0", "a::1"], 3) == ["a::0", "a::1", "b::0"]


def test_what_the_kubelet_cannot_have_is_left_out() -> None:
    all_of = offered(device("a"))
    assert prefer_ids(all_of, ["a", "nothing"], ["nothing"], 3) == ["a"]
    assert prefer_ids(all_of, [], [], 1) == []
    assert prefer_ids(all_of, ["a"], [], -1) == []
