"""The section `devices` of driver.yaml: what a node has once its driver is ready. See model.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from nodeside.spec import patterns
from nodeside.spec.pci import PciId
from nodeside.spec.schema import item, section

LABEL_LIMIT = 22  # characters of an attribute: <driver>.<attribute> has at most 63
OWN_LABELS = ("version", "count")  # that the device agent sets without an attribute


class MetricType(Enum):
    """What kind of metric an attribute is."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Expose(Enum):
    """How pods ask for the devices."""

    DEVICE_PLUGIN = "devicePlugin"
    DRA = "dra"


@section
class PciFunction(PciId):
    """PCI functions by their ids, each of which is a device."""

    driver: str = item(
        "The driver that a function must be bound to; one that is not is unhealthy.",
        default="",
        default_words="bound or not",
        pattern=patterns.DRIVER_IN_SYSFS,
    )


@section
class Discover:
    """Where the devices are: exactly one of `pci`, `sysfs`, `nodes` and `count`."""

    pci: tuple[PciFunction, ...] = item("PCI functions that are there.", default=())
    sysfs: tuple[str, ...] = item(
        "Directories below /sys, such as `class/fpga_region/region*/dfl-port.*`; a * stands for "
        "any part of one name. Each match is a device.",
        default=(),
        pattern=patterns.SYSFS_PATH,
    )
    nodes: tuple[str, ...] = item(
        "Device nodes, such as `/dev/video*`; a * stands for any part of one name. Each match is "
        "a device.",
        default=(),
        pattern=patterns.DEVICE_NODE,
    )
    count: int = item(
        "Number of units that cannot be told apart; their ids are 0, 1, 2 and so on.",
        default=0,
        default_words="the devices are found",
        minimum=0,
        maximum=1024,
    )


@section
class DeviceNodes:
    """The device nodes of each device: exactly one of `class` and `path`."""

    class_: str = item(
        "Those of this class, as in /sys/class, that belong to the device: its own, and those of "
        "what is below it.",
        default="",
        pattern=patterns.SYSFS_NAME,
    )
    path: str = item(
        "A device node that all devices share, such as /dev/edu-control.",
        default="",
        pattern=patterns.DEVICE_NODE,
    )


@section
class Mount:
    """A file or a directory of the node in each container that is given a device."""

    host_path: str = item("Its path on the node.", pattern=patterns.ABSOLUTE_PATH)
    container_path: str = item(
        "Its path in the container.",
        default="",
        default_words="the same path",
        pattern=patterns.ABSOLUTE_PATH,
    )
    read_only: bool = item("Whether the container may only read it.", default=True)


@section
class Give:
    """What a container gets that asked for a device."""

    nodes: DeviceNodes | None = item(
        "Device nodes.",
        default=None,
        default_words="that of the match itself, if it has one",
    )
    mounts: tuple[Mount, ...] = item(
        "Files and directories of the node, such as a vendor's libraries.",
        default=(),
        max_items=32,
    )
    userspace: bool = item(
        "Whether the files and the environment of `userspace` are given too.", default=False
    )
    environment: Mapping[str, str] = item(
        "Environment variables. Of the devices that the container was given, {ids} stands for "
        "their ids, {bdf} for the addresses of their PCI functions and {nodes} for their device "
        "nodes, joined by commas.",
        default_factory=dict,
        key_pattern=patterns.VARIABLE_NAME,
        pattern=patterns.DEVICE_VARIABLE,
    )


@section
class Metric:
    """A metric of each device, with the labels `resource` and `device`."""

    name: str = item(
        "Its name, as Prometheus has them; that of a counter ends in _total.",
        pattern=patterns.METRIC_NAME,
        max_length=128,
    )
    type: MetricType = item(
        "`gauge` for what goes up and down, `counter` for what only goes up until the driver is "
        "loaded again.",
        default=MetricType.GAUGE,
    )


@section
class Attribute:
    """A file in sysfs of each device, whose content says something about it."""

    name: str = item(
        "What it is called.", pattern=patterns.ATTRIBUTE_NAME, max_length=patterns.ATTRIBUTE_LIMIT
    )
    path: str = item(
        "The file, relative to the device's directory in sysfs. With a *, which stands for any "
        "part of one name, exactly one file must match.",
        pattern=patterns.FILE_IN_SYSFS,
    )
    metric: Metric | None = item(
        "Its content as a metric of the device agent, if it is a number: decimal, or hexadecimal "
        "with 0x.",
        default=None,
    )
    label: bool = item(
        "Whether it is a label of the node too, `feature.nodeside.io/<driver>.<name>`: only for "
        "what never changes. It is left out where the node's devices disagree.",
        default=False,
    )


@section
class DeviceHealth:
    """A file in sysfs of each device that tells whether it works: exactly one of `value` and
    `matches`."""

    path: str = item(
        "The file, relative to the device's directory in sysfs, as for `attributes`.",
        pattern=patterns.FILE_IN_SYSFS,
    )
    value: str = item(
        "The content of a device that works; white space at both ends is ignored.",
        default="",
        max_length=256,
    )
    matches: str = item(
        "A Python regular expression that must match somewhere in the content of a device that "
        "works.",
        default="",
        max_length=256,
    )
    interval_seconds: int = item(
        "Seconds between two looks of the device agent.", default=30, minimum=1, maximum=3600
    )


@section
class Device:
    """A kind of devices that the driver drives."""

    resource: str = item(
        "What Kubernetes calls them, such as example.com/edu.", pattern=patterns.RESOURCE_NAME
    )
    discover: Discover = item("Where they are.")
    give: Give = item("What a container gets that asked for one.", default_factory=Give)
    attributes: tuple[Attribute, ...] = item(
        "Files that say something about them.", default=(), max_items=16
    )
    health: DeviceHealth | None = item(
        "A file that tells whether one works.",
        default=None,
        default_words="one works if the driver is ready and bound to it",
    )
    expose: Expose = item(
        "How pods ask for them: `devicePlugin` for an extended resource of the kubelet, `dra` for "
        "dynamic resource allocation, by ResourceClaims.",
        default=Expose.DEVICE_PLUGIN,
    )
    shares: int = item(
        "To how many containers a device is given at a time.", default=1, minimum=1, maximum=64
    )

    @property
    def is_dra(self) -> bool:
        """Whether pods ask for one by a claim."""
        return self.expose is Expose.DRA


def dra_devices(devices: Iterable[Device]) -> list[Device]:
    """Return the devices that pods ask for by claims."""
    return [each for each in devices if each.is_dra]


def label_names(devices: Iterable[Device]) -> list[str]:
    """Return the names of the attributes that are labels of the node."""
    return [each.name for device in devices for each in device.attributes if each.label]
