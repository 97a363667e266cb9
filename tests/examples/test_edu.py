"""The example driver agrees with itself: source, dkms.conf, driver.yaml, Containerfile.

That it builds, loads and computes is proven in tests/vm.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from nodeside.driver.handoff.source import build_settings, source_digest
from nodeside.protocol.bundle_key import BuildKind
from nodeside.spec import Driver, load
from nodeside.system import process
from tests.images.containerfile import copies

EDU = Path(__file__).parents[2] / "examples" / "edu"
SOURCE = (EDU / "src" / "edu.c").read_text()
DKMS_CONF = (EDU / "src" / "dkms.conf").read_text()
DKMS = dict(re.findall(r'^([A-Z_]+(?:\[0\])?)="(.*)"$', DKMS_CONF, re.MULTILINE))


@pytest.fixture(scope="module")
def driver() -> Driver:
    return load(EDU / "driver.yaml")


def test_every_version_says_the_same(driver: Driver) -> None:
    module_version = re.search(r'MODULE_VERSION\("(.*)"\)', SOURCE)
    label = re.search(r'image\.version="(.*)"', (EDU / "Containerfile").read_text())

    assert module_version
    assert label
    assert module_version[1] == DKMS["PACKAGE_VERSION"] == label[1] == driver.spec.version
    assert driver.spec.image.endswith(f":{driver.spec.version}")


def test_the_module_of_driver_yaml_is_what_kbuild_and_dkms_make(driver: Driver) -> None:
    objects = re.findall(r"^obj-m := (\w+)\.o$", (EDU / "src" / "Kbuild").read_text(), re.MULTILINE)

    assert [module.name for module in driver.spec.modules] == objects
    assert DKMS["BUILT_MODULE_NAME[0]"] == objects[0]


def test_the_source_is_a_kbuild_tree_here_and_a_dkms_tree_by_itself(driver: Driver) -> None:
    tree = EDU / driver.spec.source.path

    assert build_settings(driver.spec, tree).kind is BuildKind.KBUILD
    assert (tree / "dkms.conf").is_file()
    assert len(source_digest(tree)) == 64


def test_parameters_are_declared_and_described_in_the_source(driver: Driver) -> None:
    declared = set(re.findall(r"^module_param\((\w+),", SOURCE, re.MULTILINE))
    described = set(re.findall(r"MODULE_PARM_DESC\((\w+),", SOURCE))

    assert declared == described
    assert {name for module in driver.spec.modules for name in module.parameters} == declared


def test_the_hardware_is_what_the_module_binds_to(driver: Driver) -> None:
    ids = re.findall(r"PCI_DEVICE\(0x([0-9a-f]{4}), 0x([0-9a-f]{4})\)", SOURCE)

    assert [(pci.vendor, pci.device) for pci in driver.spec.hardware.pci] == ids
    assert [(check.vendor, check.device) for check in driver.spec.validate.bound] == ids


def test_validated_attributes_exist_in_the_source(driver: Driver) -> None:
    attributes = set(re.findall(r"^static DEVICE_ATTR\w*\((\w+)\);", SOURCE, re.MULTILINE))
    checked = {Path(check.path).name for check in driver.spec.validate.sysfs}

    assert checked == {"factorial", "selftest"}
    assert checked <= attributes


def test_each_probe_logs_one_line_that_can_be_counted() -> None:
    assert SOURCE.count('"edu: probe: ') == 1


def test_the_containerfile_copies_what_is_there_and_all_that_driver_yaml_names(
    driver: Driver,
) -> None:
    copied = {source.rstrip("/") for source, _ in copies(EDU / "Containerfile")}

    assert {"driver.yaml", driver.spec.source.path} <= copied
    assert all((EDU / source).exists() for source in copied)


def test_the_consumer_says_in_one_sentence_what_is_missing(tmp_path: Path) -> None:
    missing = tmp_path / "edu0"
    done = process.run(
        [sys.executable, EDU / "factorial.py", missing, "5"], check=False, timeout=30
    )

    assert done.exit_code == 1
    assert done.errors == f"{missing}: No such file or directory\n"


def test_the_readme_names_every_attribute_parameter_and_file() -> None:
    text = (EDU / "README.md").read_text()
    attributes = re.findall(r"^static DEVICE_ATTR\w*\((\w+)\);", SOURCE, re.MULTILINE)
    files = [path.name for path in EDU.iterdir() if path.name != "README.md"]

    assert [name for name in (*attributes, "timeout_ms", *files) if f"`{name}" not in text] == []
