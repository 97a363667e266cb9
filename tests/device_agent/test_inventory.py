"""What is offered of a resource over time."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from nodeside import log
from nodeside.device_agent.inventory import ASK_AGAIN, GONE_FOR, MOST, MOST_MISSING, Inventory
from nodeside.devices.discovery import FoundDevice, FoundDevices

ONE, TWO = FoundDevice("00:05.0", nodes=("/dev/edu0",)), FoundDevice("00:06.0")
ILL = FoundDevice("00:06.0", why="liveness says 'no', not 'ok'")


def found(*devices: FoundDevice, notes: tuple[str, ...] = ()) -> FoundDevices:
    return FoundDevices("example.com/edu", devices, notes)


def listed(inventory: Inventory) -> dict[str, str]:
    return {name: each.device.why for name, each in inventory.known.offered.items()}


def test_it_is_known_whether_the_driver_was_ready_at_the_last_look() -> None:
    inventory = Inventory("example.com/edu")
    for is_ready in (False, True, False):
        inventory.update(replace(found(ONE), is_ready=is_ready), 0.0)
        assert inventory.known.is_ready == is_ready


def test_a_device_that_is_gone_is_unhealthy_for_five_minutes_and_then_forgotten() -> None:
    inventory = Inventory("example.com/edu")
    inventory.update(found(ONE, TWO), 0.0)
    assert listed(inventory) == {"00:05.0": "", "00:06.0": ""}

    assert inventory.update(found(TWO), 10.0)
    assert listed(inventory) == {"00:05.0": "it disappeared", "00:06.0": ""}
    assert inventory.known.offered["00:05.0"].device.nodes == ()
    assert not inventory.update(found(TWO), 10.0 + GONE_FOR - 1)
    assert inventory.known.missing == []
    assert inventory.update(found(TWO), 10.0 + GONE_FOR)
    assert listed(inventory) == {"00:06.0": ""}


def test_a_device_that_is_listed_no_more_is_missing_until_it_is_back() -> None:
    inventory = Inventory("example.com/edu")
    inventory.update(found(ONE, TWO), 0.0)
    for now in (0.0, GONE_FOR, 100 * GONE_FOR):
        inventory.update(found(TWO), now)
    assert inventory.known.missing == ["00:05.0"]
    inventory.update(found(ONE, TWO), 101 * GONE_FOR)
    assert inventory.known.missing == []


def test_not_more_devices_are_missed_than_memory_is_worth() -> None:
    inventory = Inventory("example.com/edu")
    for number in range(3):
        many = [FoundDevice(f"{number}-{each}") for each in range(MOST_MISSING)]
        inventory.update(found(*many), GONE_FOR * 2 * number)
        inventory.update(found(), GONE_FOR * (2 * number + 1))
    inventory.update(found(), GONE_FOR * 9)
    assert len(inventory.known.missing) == MOST_MISSING


def test_a_device_that_is_gone_stays_listed_while_a_container_has_it() -> None:
    held: list[set[str] | None] = [{"00:05.0::1"}, None, set()]
    inventory = Inventory("example.com/edu", 2, lambda: held[0])
    inventory.update(found(ONE, TWO), 0.0)
    inventory.update(found(TWO), 0.0)
    for now in (GONE_FOR, GONE_FOR + ASK_AGAIN):
        inventory.update(found(TWO), now)
        assert "00:05.0::0" in inventory.known.offered, (
            "nobody knows" if held[0] is None else held[0]
        )
        inventory.update(found(TWO), now + ASK_AGAIN - 1)
        held.pop(0)
    inventory.update(found(TWO), GONE_FOR + 2 * ASK_AGAIN - 1)
    assert "00:05.0::0" in inventory.known.offered, "it is asked only now and then"
    inventory.update(found(TWO), GONE_FOR + 2 * ASK_AGAIN)
    assert list(inventory.known.offered) == ["00:06.0::0", "00:06.0::1"]


def test_a_device_that_comes_back_is_what_it_was_and_may_go_again() -> None:
    inventory = Inventory("example.com/edu")
    inventory.update(found(ONE), 0.0)
    inventory.update(found(), 10.0)
    assert inventory.update(found(ONE), 20.0)
    assert listed(inventory) == {"00:05.0": ""}
    inventory.update(found(), 10.0 + GONE_FOR)
    assert listed(inventory) == {"00:05.0": "it disappeared"}, "counted from the second time"


def test_each_share_is_listed() -> None:
    inventory = Inventory("example.com/edu", shares=2)
    inventory.update(found(ONE), 0.0)
    offered = inventory.known.offered
    assert list(offered) == ["00:05.0::0", "00:05.0::1"]
    assert [each.device for each in offered.values()] == [ONE, ONE]


def test_each_change_is_logged_once_with_its_reason() -> None:
    said = io.StringIO()
    log.setup("agent", to=said)
    inventory = Inventory("example.com/edu")
    notes = ("more than 4096 match; those after that are left out",)
    for now in range(3):
        inventory.update(found(ONE, ILL, notes=notes), float(now))
    inventory.update(found(ONE, TWO), 4.0)
    resource = "resource=example.com/edu"
    assert said.getvalue().splitlines() == [
        f"agent device is healthy {resource} device=00:05.0",
        f'agent warning: device is unhealthy {resource} device=00:06.0 why="{ILL.why}"',
        f'agent warning: devices {resource} note="{notes[0]}"',
        f"agent device is healthy {resource} device=00:06.0",
    ]


@pytest.mark.slow
def test_not_more_is_listed_than_fits_into_a_message() -> None:
    inventory = Inventory("example.com/edu", shares=64)
    inventory.update(found(*(FoundDevice(str(number)) for number in range(4096))), 0.0)
    assert len(inventory.known.offered) == MOST
