"""The example of the FPGAs agrees with itself: source, driver.yaml, Containerfile, README.

That it builds, loads and computes is proven in tests/vm, and what it finds in tests/devices.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodeside.spec import Driver, load
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
