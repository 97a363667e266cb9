"""Who else puts drivers on nodes, and how a node shows it: by labels, or by a directory.

Pure. Only what concerns a driver is found: its modules, its hardware, its resources. Labels are
data of somebody else: they are compared, and shown in part.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from nodeside.log import escape_controls
from nodeside.protocol.module_names import kernel_name
from nodeside.spec.model import Driver
from nodeside.values import frozen

_SHOWN = 200  # characters of a label
_FOUND = 8  # of a node
_KMM = re.compile(
    r"kmm\.node\.kubernetes\.io/(?:"
    r"version-module\.(?P<asked>[a-z0-9-]+\.[a-z0-9.-]+)"
    r"|(?P<ready>[a-z0-9-]+\.[a-z0-9.-]+?)(?:\.version)?\.ready)"
)


@frozen
class Installer:
    """A program that installs drivers for the devices of a vendor.

    `modules` are the beginnings of their names. A node that has one of `labels`, with the value if
    there is one, has a driver of its. `plugins` are labels by which it offers `resources`.
    `directory` is where its driver container leaves traces on the host.
    """

    name: str
    vendor: str
    modules: tuple[str, ...]
    labels: Mapping[str, str]
    way_out: str
    directory: str = ""
    resources: str = ""
    plugins: Mapping[str, str] | None = None


INSTALLERS = (
    Installer(
        "NVIDIA's GPU Operator",
        "10de",
        ("nvidia",),
        {"nvidia.com/gpu.deploy.driver": "true"},
        "kubectl label --overwrite node NODE nvidia.com/gpu.deploy.driver=false",
        "run/nvidia/driver",
        "nvidia.com/",
        {"nvidia.com/gpu.deploy.device-plugin": "true"},
    ),
    Installer(
        "NVIDIA's Network Operator",
        "15b3",
        ("mlx", "ib_", "rdma_"),
        {
            "nvidia.com/ofed-driver-upgrade-state": "",
            "network.nvidia.com/operator.mofed.wait": "true",
        },
        "take ofedDriver out of its NicClusterPolicy",
        "run/mellanox/drivers",
    ),
    Installer(
        "AMD's GPU Operator",
        "1002",
        ("amdgpu",),
        {"operator.amd.com/gpu-driver-upgrade-state": ""},
        "set spec.driver.enable: false in its DeviceConfig",
    ),
)


@frozen
class FoundInstaller:
    """Somebody else at work on what a driver is for: who, by which sign, and how to end that."""

    name: str
    sign: str
    way_out: str


def installers_of(driver: Driver) -> tuple[Installer, ...]:
    """Return those that are for the modules, or the vendor's devices, of a driver."""
    vendors = {each.vendor for each in driver.spec.hardware.pci}
    modules = _modules_of(driver)
    return tuple(
        each
        for each in INSTALLERS
        if each.vendor in vendors or any(name.startswith(each.modules) for name in modules)
    )


def find_installers(driver: Driver, labels: Mapping[str, str]) -> tuple[FoundInstaller, ...]:
    """Return who else works on what a driver is for, by the labels of a node."""
    return tuple(islice(_find_installers(driver, labels), _FOUND))


def _find_installers(driver: Driver, labels: Mapping[str, str]) -> Iterator[FoundInstaller]:
    for each in installers_of(driver):
        for key, value in each.labels.items():
            if key in labels and value in ("", labels[key]):
                yield FoundInstaller(each.name, _label_in_words(key, labels[key]), each.way_out)
                break
    resources = [device.resource for device in driver.spec.devices]
    for each in INSTALLERS:
        for key, value in (each.plugins or {}).items():
            ours = any(name.startswith(each.resources) for name in resources)
            if ours and labels.get(key) == value:
                way_out = f"kubectl label --overwrite node NODE {key}=false"
                yield FoundInstaller(f"{each.name}'s device plugin", f"{key}={value}", way_out)
    yield from _find_kmm_modules({kernel_name(driver.name), *_modules_of(driver)}, labels)


def _find_kmm_modules(
    names: Collection[str], labels: Mapping[str, str]
) -> Iterator[FoundInstaller]:
    """Yield the Modules of Kernel Module Management that have one of these names."""
    named_modules = set()
    for key, value in labels.items():
        found = _KMM.fullmatch(key) if key.startswith("kmm.") else None
        module = (found["ready"] or found["asked"]) if found else ""
        namespace, _, name = module.partition(".")
        if kernel_name(name) in names and module not in named_modules:
            named_modules.add(module)
            yield FoundInstaller(
                f"Kernel Module Management (Module {namespace}/{name})",
                _label_in_words(key, value),
                f"kubectl delete modules.kmm.sigs.x-k8s.io -n {namespace} {name}",
            )


def _modules_of(driver: Driver) -> tuple[str, ...]:
    return tuple(kernel_name(module.name) for module in driver.spec.modules)


def _label_in_words(key: str, value: str) -> str:
    return escape_controls(f"{key}={value}" if value else key)[:_SHOWN]
