"""The example driver that shows edu devices as FPGA ports, in the layouts of both Intel drivers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nodeside.errors import ExitCode
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from tests.vm.conftest import Give, Resume
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import Pod
from tests.vm.variants import EDU, DriverImage, variant

pytestmark = pytest.mark.vm

PORTS = {"dfl": "dfl-port.", "opae": "intel-fpga-port."}
PARENTS = {"dfl": "fpga_region/region", "opae": "fpga/intel-fpga-dev."}


@pytest.fixture(scope="module")
def machine(resume: Resume, image: DriverImage) -> Iterator[Machine]:
    for layout in (*PORTS, "unknown"):
        modules = [{"name": "edu_fpga", "parameters": {"layout": layout}}]
        variant(EDU.parent / "fpga", image.directory / layout, {"modules": modules})
    with resume(image, devices=("edu", "edu")) as machine:
        yield machine


@pytest.mark.parametrize("layout", PORTS)
def test_each_port_is_a_device_that_computes_until_its_card_crashes(
    pod: Pod, give: Give, layout: str
) -> None:
    give(layout)
    assert pod.run_once(of=layout)["state"] == "ready"

    cards = cards_of(pod)
    assert len(cards) == 2
    found = devices(pod, layout)
    assert [each["id"] for each in found] == [each["address"] for each in found] == cards
    for number, each in enumerate(found):
        port = f"{PORTS[layout]}{number}"
        tree = f"/sys/bus/pci/devices/0000:{each['id']}/{PARENTS[layout]}{number}/{port}"
        assert each["nodes"] == [f"/dev/{port}"]
        assert each["attributes"] == {"afu_id": pod.node("cat", f"{tree}/afu_id").strip()}
        assert each["healthy"], each["why"]
        assert factorial(pod, port, 10) == "3628800\n"

    crashed = f"{PORTS[layout]}1"
    pod.node("sh", "-c", f"echo 1 > /sys/bus/edu-fpga/devices/{crashed}/crashed")
    first, second = devices(pod, layout)
    assert first["healthy"]
    assert second["why"] == f"afu_id says {'f' * 32!r}, not a match of [0-9a-eA-E]"
    assert factorial(pod, f"{PORTS[layout]}0", 12) == "479001600\n"
    assert "Input/output error" in factorial(pod, crashed, 12)

    pod.node("sh", "-c", f"echo 0 > /sys/bus/edu-fpga/devices/{crashed}/crashed")
    assert all(each["healthy"] for each in devices(pod, layout))


def test_a_card_may_go_while_its_port_is_open_and_come_back(pod: Pod, give: Give) -> None:
    give("dfl")
    pod.run_once(of="dfl")
    stays, goes = (each["id"] for each in devices(pod, "dfl"))

    said = shell(
        pod,
        "exec 3<>/dev/dfl-port.1",
        f"echo 1 > /sys/bus/pci/devices/0000:{goes}/remove",
        "ls -d /dev/dfl-port.* /sys/class/fpga_region/*",
        "echo 10 >&3",
        "rmmod edu_fpga",
    )
    there, refused = said.splitlines()[:2], said.splitlines()[2:]
    assert there == ["/dev/dfl-port.0", "/sys/class/fpga_region/region0"]
    assert "No such device" in refused[0]
    assert "temporarily unavailable" in refused[1], "the module went while its device was open"
    assert [each["id"] for each in devices(pod, "dfl")] == [stays]

    pod.node("sh", "-c", "echo 1 > /sys/bus/pci/rescan")
    assert [each["id"] for each in devices(pod, "dfl")] == [stays, goes]
    assert all(each["healthy"] for each in devices(pod, "dfl"))
    pod.node("rmmod", "edu_fpga")
    assert shell(pod, "ls -d /dev/dfl-port.* /sys/class/fpga_region").count("No such file") == 2


def test_an_unknown_layout_is_refused(pod: Pod, give: Give) -> None:
    give("unknown")
    assert pod.run_once(of="unknown", code=ExitCode.LOAD_FAILED)["state"] == "failed"
    assert "layout=unknown is neither dfl nor opae" in pod.kernel_log()


def test_the_module_builds_for_the_next_series_of_kernels(
    host_builds: HostBuilds, compressed: KernelDisk, image: DriverImage
) -> None:
    bundle = host_builds(image.directory / "dfl", compressed)
    assert bundle.module_path("edu_fpga").is_file()


def cards_of(pod: Pod) -> list[str]:
    """The addresses of what the module is bound to, as ids are written."""
    names = pod.node("ls", "/sys/bus/pci/drivers/edu_fpga").split()
    return sorted(name.removeprefix("0000:") for name in names if name.startswith("0000:"))


def devices(pod: Pod, layout: str) -> list[dict[str, Any]]:
    [resource] = pod.report("devices", of=layout)["resources"]
    assert resource["resource"] == "b-com.com/accelerator"
    found = resource["devices"]
    assert isinstance(found, list)
    return found


def factorial(pod: Pod, port: str, number: int) -> str:
    return shell(pod, f"exec 3<>/dev/{port}", f"echo {number} >&3 && head -n 1 <&3")


def shell(pod: Pod, *lines: str) -> str:
    """What these lines say on both outputs, whatever becomes of them."""
    return pod.node("sh", "-c", "\n".join(("exec 2>&1", *lines)), check=False)
