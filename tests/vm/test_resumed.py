"""A machine that was saved and resumed is as good as one that was booted."""

from __future__ import annotations

import json

import pytest

from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import LONG, Pod
from tests.vm.resumed import SavedMachine
from tests.vm.variants import DriverImage

pytestmark = pytest.mark.vm

_LATER = 2_000_000_000.0  # a second of the year 2033
_OWNERS = "find /payload/driver-image | xargs stat -c %u:%g | sort -u"
_WRITTEN = "find /var/lib/nodeside /run/nodeside /var/lib/mine -type f"


def said(machine: Machine, script: str) -> str:
    return machine.run(["sh", "-c", script], "node", timeout=LONG).output.strip()


def drivers(machine: Machine) -> list[str]:
    """What a new container sees of its image."""
    return machine.run(["ls", "/driver-image"], timeout=LONG).output.split()


def test_two_resumes_of_a_machine_have_nothing_in_common_but_the_boot(
    saved: SavedMachine, image: DriverImage, host_builds: HostBuilds, newest: KernelDisk
) -> None:
    bundle = host_builds(image.edu("edu"), newest)
    with saved.resumed(image) as first:
        pod = Pod(first, first.warm)
        pod.put_bundle(bundle)
        report = pod.run_once(of="edu")
        assert (report["source"], report["state"]) == ("cached", "ready")
        assert pod.exists("/dev/edu0")
        assert pod.ready()
        assert said(first, _OWNERS) == "0:0"
        said(first, "mkdir /var/lib/mine; touch /var/lib/mine/file; sync")
        assert said(first, _WRITTEN)

        image.edu("another")
        with saved.resumed(image, devices=(), network=True, clock=lambda: _LATER) as second:
            assert (drivers(first), drivers(second)) == (["edu"], ["another", "edu"])
            assert said(second, "date -u +%Y") == "2033"
            assert first.first_random != second.first_random != ""
            assert said(second, f"mkdir -p /var/lib/mine; {_WRITTEN}") == ""
            assert not Pod(second).loaded()
            argv = ["ip", "-json", "address", "show", "dev", "eth0"]
            [card] = json.loads(second.run(argv, timeout=LONG).output)
            assert "10.0.2.15" in [address["local"] for address in card["addr_info"]]

        pod.end_containers()
        assert pod.run_once(of="edu")["state"] == "ready", "in a new container"
