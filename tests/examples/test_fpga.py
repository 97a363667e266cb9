"""The example of the FPGAs agrees with itself: source, driver.yaml, Containerfile, README.

That it builds, loads and computes is proven in tests/vm, and what it finds in tests/devices.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nodeside
from cluster.model.snapshot import Settings
from cluster.options.devices.agent_manifests import device_agent
from nodeside.device_agent.allocation import ContainerGrant, make_grant
from nodeside.device_agent.inventory import OfferedDevice
from nodeside.devices.discovery import FoundDevice
from nodeside.spec import Driver, load
from tests import yaml_in_c as yaml
from tests.images.containerfile import copies

FPGA = Path(__file__).parents[2] / "examples" / "fpga"
SOURCE = (FPGA / "src" / "edu_fpga.c").read_text()


@pytest.fixture(scope="module")
def driver() -> Driver:
    return load(FPGA / "driver.yaml")


def test_every_version_says_the_same(driver: Driver) -> None:
    module_version = re.search(r'MODULE_VERSION\("(.*)"\)', SOURCE)
    label = re.search(r'image\.version="(.*)"', (FPGA / "Containerfile").read_text())

    assert module_version
    assert label
    assert module_version[1] == label[1] == driver.spec.version
    assert driver.spec.image.endswith(f":{driver.spec.version}")


def test_the_module_and_the_hardware_are_those_of_the_source(driver: Driver) -> None:
    [module] = driver.spec.modules
    objects = re.findall(r"^obj-m := (\w+)\.o$", (FPGA / "src/Kbuild").read_text(), re.MULTILINE)
    ids = re.findall(r"PCI_DEVICE\(0x([0-9a-f]{4}), 0x([0-9a-f]{4})\)", SOURCE)

    assert objects == [module.name]
    assert set(module.parameters) == set(re.findall(r"^module_param\((\w+),", SOURCE, re.MULTILINE))
    assert [(pci.vendor, pci.device) for pci in driver.spec.hardware.pci] == ids
    assert [(check.vendor, check.device) for check in driver.spec.validate.bound] == ids


def test_the_containerfile_copies_what_is_there_and_all_that_driver_yaml_names(
    driver: Driver,
) -> None:
    copied = {source.rstrip("/") for source, _ in copies(FPGA / "Containerfile")}

    assert {"driver.yaml", driver.spec.source.path} == copied
    assert all((FPGA / source).exists() for source in copied)


def test_units_that_are_counted_are_named_by_their_numbers() -> None:
    [device] = load(FPGA / "aws" / "driver.yaml").spec.devices
    offered = {
        name: OfferedDevice(name, FoundDevice(name))
        for name in map(str, range(device.discover.count))
    }
    assert len(offered) == 40
    assert make_grant(device.give, offered, ["17", "3"]) == ContainerGrant(
        (), {"ACCELERATOR_UNITS": "3,17"}
    )


def test_the_daemon_set_is_what_the_controller_would_make() -> None:
    """But for the driver, which it does not wait for, and for where its driver.yaml is."""
    driver = load(FPGA / "aws" / "driver.yaml")
    image = f"registry.example.com/nodeside/nodeside-agent:{nodeside.__version__}"
    assert driver.spec.image == image.replace("-agent", "-driver")
    _, ours, _ = device_agent(driver, Settings(agent_image=image))
    theirs = yaml.safe_load((FPGA / "aws" / "daemonset.yaml").read_text())
    pod, other = (each["spec"]["template"]["spec"] for each in (ours, theirs))
    [container], [same] = pod.pop("containers"), other.pop("containers")
    assert same.pop("command") == [*container.pop("command"), "--without-driver"]
    needless = {"NODE_NAME", "NODESIDE_REVISION"}
    assert same.pop("env") == [e for e in container.pop("env") if e["name"] not in needless]
    assert same == container
    assert other.pop("nodeSelector") == driver.spec.hardware.node_selector
    del pod["serviceAccountName"]
    for volumes in (pod["volumes"], other["volumes"]):
        volumes[0]["configMap"]["name"] = "any"
    assert other == pod


def test_the_readme_names_every_attribute_parameter_variable_and_file(driver: Driver) -> None:
    text = (FPGA / "README.md").read_text()
    [device] = driver.spec.devices
    names = [
        *re.findall(r"^static DEVICE_ATTR\w*\((\w+)\);", SOURCE, re.MULTILINE),
        *(name for module in driver.spec.modules for name in module.parameters),
        *device.give.environment,
        *(path.name for path in FPGA.iterdir() if path.name != "README.md"),
    ]

    assert [name for name in names if f"`{name}" not in text] == []
    assert f"limits: {{{device.resource}: 2}}" in text
