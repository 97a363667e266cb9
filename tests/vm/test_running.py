"""A driver container that goes on running: what it notices, and what its end leaves behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from nodeside.trial.machine.machine import Machine
from tests.vm.conftest import Give, Resume
from tests.vm.pod import Pod
from tests.vm.variants import DriverImage, SmallModule, parameters

pytestmark = pytest.mark.vm

_READY = r"NODESIDE_READY driver=edu "
_MOUNTED = "/var/lib/nodeside/mounted"  # seen below /host in the container, as a ConfigMap would be


@pytest.fixture(scope="module")
def machine(resume: Resume, image: DriverImage) -> Iterator[Machine]:
    image.edu("edu")
    image.small("slow", SmallModule("slow", init='pr_info("slow: begins\\n");\n\tmsleep(8000);'))
    with resume(image) as machine:
        yield machine


def test_a_running_container_loads_again_what_was_unloaded_and_leaves_it_at_its_end(
    pod: Pod, give: Give
) -> None:
    give("edu")
    probes = pod.lines_of_probe()
    driver = pod.start_driver("run", "--verbose", of="edu")
    driver.says.until(_READY)

    pod.node("rmmod", "edu")

    driver.says.until(r"looking again.*why=uevent")
    driver.says.until(_READY, times=2)
    assert pod.lines_of_probe() == probes + 2

    ended = driver.kill(signal.SIGTERM)
    assert ended.exit_code == 0
    assert "stopping; the modules stay loaded signal=SIGTERM" in ended.errors
    assert pod.loaded()
    assert pod.ready()
    assert pod.run_once(of="edu")["source"] == "loaded"
    assert pod.lines_of_probe() == probes + 2


def test_a_running_container_follows_its_driver_yaml(
    pod: Pod, give: Give, image: DriverImage
) -> None:
    give("edu")
    document = json.loads((image.directory / "edu" / "driver.yaml").read_text())
    document["spec"]["source"]["path"] = "/driver-image/edu/src"
    pod.machine.write_file(f"{_MOUNTED}/driver.yaml", json.dumps(document).encode())
    place = {"NODESIDE_DRIVER": f"/host{_MOUNTED}/driver.yaml"}
    driver = pod.start_driver("run", "--verbose", env=place)
    driver.says.until(_READY)
    assert pod.parameter("timeout_ms") == "2000"

    document["spec"]["modules"] = parameters(timeout_ms="3000")
    pod.machine.write_file(f"{_MOUNTED}/driver.yaml", json.dumps(document).encode())

    driver.says.until(_READY, times=2)
    assert driver.says.matching("looking again.*why=input")
    assert pod.parameter("timeout_ms") == "3000"

    pod.machine.write_file(f"{_MOUNTED}/driver.yaml", b"{ half a document")
    driver.says.until(r"driver\.yaml:1:\d+: not YAML")
    assert pod.loaded(), "a driver.yaml that cannot be read is no reason to unload"


def test_a_driver_killed_in_the_middle_of_a_load_is_right_at_the_next_start(
    pod: Pod, give: Give
) -> None:
    give("slow")
    begun = pod.said("slow: begins")
    driver = pod.start_driver("run", "--once", of="slow")
    pod.until(f"[ $(dmesg | grep -c 'slow: begins') -gt {begun} ]")
    assert pod.node("cat", "/sys/module/slow/initstate") == "coming\n"

    driver.process.kill()

    again = pod.run_once(of="slow")
    assert again["state"] == "ready"
    assert again["source"] == "loaded"
    assert pod.node("cat", "/sys/module/slow/initstate") == "live\n"
    assert pod.said("slow: begins") == begun + 1, "it was loaded twice"


def test_the_devices_of_a_node_are_what_the_driver_is_bound_to(pod: Pod, give: Give) -> None:
    def device() -> dict[str, Any]:
        [found] = pod.report("devices", of="edu")["resources"][0]["devices"]
        assert isinstance(found, dict)
        return found

    give("edu")
    assert device()["why"] == "driver edu is not ready on this node"

    pod.run_once(of="edu")
    found = device()
    assert (found["healthy"], found["nodes"]) == (True, ["/dev/edu0"])
    assert found["attributes"]["interrupts"].isdecimal()
    address = f"0000:{found['address']}"
    assert found["id"] == found["address"]

    pod.node("sh", "-c", f"echo {address} > /sys/bus/pci/drivers/edu/unbind")
    unbound = device()
    assert (unbound["id"], unbound["nodes"]) == (found["id"], [])
    assert unbound["why"] == "bound to no driver, not to edu"

    pod.node("sh", "-c", f"echo {address} > /sys/bus/pci/drivers/edu/bind")
    assert device()["healthy"]
