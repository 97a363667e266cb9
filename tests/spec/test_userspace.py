"""What containers get of the files of a driver image."""

from __future__ import annotations

from nodeside.spec.devices import Device, Discover, Give, Mount
from nodeside.spec.userspace import Userspace, devices_with_userspace

FILES = Userspace(("/opt/edu/lib",), {"LD_LIBRARY_PATH": "/opt/edu/lib", "EDU": "files"})


def device(give: Give) -> Device:
    return Device(resource="example.com/edu", discover=Discover(count=1), give=give)


def test_a_device_that_says_so_gives_them_too() -> None:
    own = Mount("/etc/edu")
    with_files = device(Give(userspace=True, mounts=(own,), environment={"EDU": "device"}))
    without = device(Give(mounts=(own,)))

    found, same = devices_with_userspace("edu", (with_files, without), FILES)

    place = "/var/lib/nodeside/userspace/edu/current/opt/edu/lib"
    assert found.give.mounts == (Mount(place, "/opt/edu/lib", read_only=True), own)
    assert found.give.environment == {"LD_LIBRARY_PATH": "/opt/edu/lib", "EDU": "device"}
    assert same is without
    assert devices_with_userspace("edu", (without,), None) == (without,)
