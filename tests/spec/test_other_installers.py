"""Others who put drivers on nodes are named where they concern a driver, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from nodeside.spec import parse
from nodeside.spec.model import Driver
from nodeside.spec.other_installers import find_installers, installers_of


def driver(name: str = "straw", vendor: str = "1234", **spec: Any) -> Driver:
    usual = {
        "version": "1.0",
        "modules": [{"name": name}],
        "hardware": {"pci": [{"vendor": vendor}]},
    }
    return parse(
        {
            "apiVersion": "nodeside.io/v1alpha1",
            "kind": "Driver",
            "metadata": {"name": name},
            "spec": usual | spec,
        }
    )


KMM = "kmm.node.kubernetes.io/"


@pytest.mark.parametrize(
    "label", ["drivers.straw.ready", "drivers.straw.version.ready", "version-module.drivers.straw"]
)
def test_a_module_of_kmm_that_has_the_name_is_named(label: str) -> None:
    [found] = find_installers(driver(), {f"{KMM}{label}": ""})
    assert found.name == "Kernel Module Management (Module drivers/straw)"
    assert found.way_out == "kubectl delete modules.kmm.sigs.x-k8s.io -n drivers straw"
    assert find_installers(driver("reed"), {f"{KMM}{label}": ""}) == ()


def test_a_module_of_kmm_is_named_once_and_by_the_kernels_name_of_the_module() -> None:
    labels = {
        f"{KMM}a.x-y.ready": "",
        f"{KMM}version-module.a.x-y": "1",
        f"{KMM}a.x-y.dra-ready": "",
    }
    assert len(find_installers(driver(modules=[{"name": "x_y"}]), labels)) == 1


@pytest.mark.parametrize(
    ("vendor", "key", "value", "name"),
    [
        ("10de", "nvidia.com/gpu.deploy.driver", "true", "NVIDIA's GPU Operator"),
        ("15b3", "nvidia.com/ofed-driver-upgrade-state", "upgrade-done", "NVIDIA's Network"),
        ("15b3", "network.nvidia.com/operator.mofed.wait", "true", "NVIDIA's Network Operator"),
        ("1002", "operator.amd.com/gpu-driver-upgrade-state", "upgrade-done", "AMD's GPU"),
    ],
)
def test_an_operator_of_the_vendor_is_named(vendor: str, key: str, value: str, name: str) -> None:
    [found] = find_installers(driver(vendor=vendor), {key: value})
    assert found.name.startswith(name)
    assert found.sign == f"{key}={value}"
    assert find_installers(driver(), {key: value}) == ()


@pytest.mark.parametrize("value", ["pre-installed", "false", ""])
def test_an_operator_that_leaves_the_driver_alone_is_not_named(value: str) -> None:
    assert find_installers(driver(vendor="10de"), {"nvidia.com/gpu.deploy.driver": value}) == ()


def test_a_module_of_the_vendor_counts_without_its_hardware() -> None:
    found = installers_of(driver("nvidia-open", hardware={}, modules=[{"name": "nvidia-uvm"}]))
    assert [each.name for each in found] == ["NVIDIA's GPU Operator"]


def test_foreign_labels_cannot_fill_what_is_shown() -> None:
    labels = {f"{KMM}{'n' * i}.straw.ready": "\x1b" * 9000 for i in range(1, 500)}
    found = find_installers(driver(), labels)
    assert len(found) == 8
    assert all(each.sign.isprintable() and len(each.sign) <= 200 for each in found)
    assert find_installers(driver(), {KMM: "", f"{KMM}..ready": "", f"{KMM}.straw.ready": ""}) == ()
