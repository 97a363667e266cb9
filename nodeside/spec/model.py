"""driver.yaml as typed values: the single definition of a driver.

These classes are the schema. `schema.py` reads their fields; `rules.py` holds the rules over
several fields. The strict parser, its messages, the JSON schema, the CRD's OpenAPI schema and
docs/driver-yaml.md are derived from them. JSON names are the camelCase of the field names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from enum import Enum
from typing import Any

from nodeside.protocol.bundle_key import BuildKind
from nodeside.spec import patterns
from nodeside.spec.devices import Device
from nodeside.spec.fleet import Preflight, Rollout, Stage, Toolkit
from nodeside.spec.pci import PciId
from nodeside.spec.pods import Pods
from nodeside.spec.schema import item, section
from nodeside.spec.services import Hooks, Service
from nodeside.spec.userspace import Userspace


class Reuse(Enum):
    """Whether modules built for another kernel release may be loaded."""

    EXACT = "exact"
    CRC = "crc"


class Upgrade(Enum):
    """When a new driver version replaces a loaded one."""

    LIVE = "live"
    ON_REBOOT = "onReboot"


class UnloadPolicy(Enum):
    """Whether a loaded module may be unloaded."""

    WHEN_IDLE = "whenIdle"
    NEVER = "never"


class Foreign(Enum):
    """What to do with a loaded module of the same name that nodeside did not load."""

    REPLACE = "replace"
    KEEP = "keep"


class Restore(Enum):
    """When a removed in-tree module and an unbound device are brought back."""

    ON_REMOVAL = "onRemoval"
    NEVER = "never"


@section
class Hardware:
    """Which nodes have the hardware. A node must match both fields."""

    pci: tuple[PciId, ...] = item(
        "A node with any of these devices has the hardware.", default=(), default_words="every node"
    )
    node_selector: Mapping[str, str] = item(
        "Labels that a node must have in addition.",
        default_factory=dict,
        key_pattern=patterns.LABEL_KEY,
        pattern=patterns.LABEL_VALUE,
    )


@section
class Source:
    """Where the source of the modules is."""

    path: str = item(
        "Directory of the source.", default=".", default_words="the directory of driver.yaml"
    )
    exclude: tuple[str, ...] = item(
        "Files and directories that are left out of the digest and of the build: a name, which "
        "matches in every directory, or a path relative to the source directory. `*`, `?` and "
        "`[...]` match parts of a name. An excluded directory is excluded with all its content.",
        default=(),
        default_words="only files that are never source",
        pattern=patterns.RELATIVE_PATH,
        max_length=255,
    )


@section
class Kernels:
    """Some kernels. Those that all given fields fit are meant."""

    kernel: str = item(
        "A Python regular expression that must match somewhere in the release, as `uname -r` "
        r"prints it: `\.el9_4\.`.",
        default="",
        max_length=256,
    )
    at_least: str = item(
        "The oldest version, such as 6.8. A distribution may have changed an older kernel as well: "
        "then name its release.",
        default="",
        pattern=patterns.KERNEL_VERSION,
    )
    below: str = item(
        "The first version that is too new.", default="", pattern=patterns.KERNEL_VERSION
    )


def _as_in_build(**limits: Any) -> Any:
    return item("See `build`.", default=None, default_words="as in `build`", **limits)


@section
class Variant:
    """How the source is built for some kernels: these fields stand in the place of those of
    `build`."""

    when: Kernels = item("The kernels.")
    kind: BuildKind | None = _as_in_build()
    directory: str | None = _as_in_build(pattern=patterns.RELATIVE_PATH)
    make_arguments: tuple[str, ...] | None = _as_in_build()
    environment: Mapping[str, str] | None = _as_in_build(
        key_pattern=patterns.VARIABLE_NAME, max_length=8192
    )
    patches: tuple[str, ...] | None = _as_in_build(pattern=patterns.RELATIVE_PATH)
    command: tuple[str, ...] | None = _as_in_build(max_length=8192)


@section
class Build:
    """How source becomes modules. The build runs in the toolkit container, without privilege."""

    kind: BuildKind | None = item(
        "`kbuild`: make with the kernel's build system; `dkms`: as dkms would build it, from the "
        "source's dkms.conf; `command`: run `command`.",
        default=None,
        default_words="`dkms` where the source has a dkms.conf, else `kbuild`",
    )
    directory: str = item(
        "The directory in the source to build in.",
        default=".",
        default_words="the source directory",
        pattern=patterns.RELATIVE_PATH,
    )
    make_arguments: tuple[str, ...] = item(
        "Additional arguments for make, such as `CONFIG_EDU=m`.", default=()
    )
    environment: Mapping[str, str] = item(
        "Environment variables of the build.",
        default_factory=dict,
        key_pattern=patterns.VARIABLE_NAME,
        max_length=8192,
    )
    patches: tuple[str, ...] = item(
        "Files of the source that are applied with `patch -p1` before the build, in order.",
        default=(),
        pattern=patterns.RELATIVE_PATH,
    )
    command: tuple[str, ...] = item(
        "For kind `command`: program and arguments, started in `directory`. It finds "
        "NODESIDE_KERNELRELEASE, NODESIDE_KERNEL_DIR, NODESIDE_JOBS and NODESIDE_OUTPUT in its "
        "environment and leaves its modules anywhere below the source or in $NODESIDE_OUTPUT.",
        default=(),
        max_length=8192,
    )
    variants: tuple[Variant, ...] = item(
        "How the source is built for some kernels. The first one that fits a kernel is used, none "
        "if none fits.",
        default=(),
        max_items=32,
    )
    timeout_seconds: int = item("Deadline of the build.", default=3600, minimum=1, maximum=86400)
    memory_limit_mib: int = item(
        "Memory that a build may use, in MiB: the limit of the toolkit container, in a driver pod "
        "and in a build Job. A build gets at most one job per 512 MiB. A node ignores it.",
        default=8192,
        minimum=256,
        maximum=1048576,
    )


def merge_variant(build: Build, variant: Variant) -> Build:
    """Return a build with the fields that a variant has in the place of its own."""
    own = {each.name: getattr(variant, each.name) for each in fields(variant)}
    del own["when"]
    return replace(build, **{name: value for name, value in own.items() if value is not None})


@section
class Module:
    """A module that the build produces and the node loads."""

    name: str = item(
        "Name of the module; - and _ are the same.",
        pattern=patterns.MODULE_NAME,
        max_length=patterns.MODULE_NAME_LIMIT,
    )
    parameters: Mapping[str, str] = item(
        'Parameters for the load, all as strings: `debug: "1"`. A parameter that the module does '
        "not declare is refused before the load.",
        default_factory=dict,
        key_pattern=patterns.PARAMETER_NAME,
        pattern=patterns.PARAMETER_VALUE,
    )


@section
class Conflicts:
    """What is removed or unbound before the load."""

    modules: tuple[str, ...] = item(
        "In-tree modules that are removed before the load.",
        default=(),
        pattern=patterns.MODULE_NAME,
        max_length=patterns.MODULE_NAME_LIMIT,
    )
    unbind: tuple[PciId, ...] = item(
        "PCI devices that are unbound from their current driver.", default=()
    )
    restore: Restore = item(
        "`onRemoval`: when the driver is unloaded or its Driver deleted, the in-tree modules that "
        "were removed for it in this boot, also those of the names in `modules`, are loaded again, "
        "with the options of modprobe.d and the kernel's command line, and the devices bound "
        "again, unless another driver has them by then. A module that another loaded driver names "
        "in its `conflicts`, and a device that such a driver has, come back when that driver is "
        "unloaded too. `never`: they stay away until a reboot; also right where another driver "
        "follows for the same device, which otherwise goes through the in-tree driver in between.",
        default=Restore.ON_REMOVAL,
    )


@section
class Firmware:
    """Firmware files that the driver requests from the kernel."""

    path: str = item("Directory of firmware files, as they would be in /lib/firmware.")


@section
class PrebuiltSource:
    """One place to look for a bundle: exactly one of `oci`, `http` and `directory`."""

    oci: str = item("An OCI repository.", default="", pattern=patterns.REPOSITORY)
    http: str = item(
        "The URL of a directory that holds `<tag>.tar.gz` files.",
        default="",
        pattern=patterns.HTTP_URL,
    )
    directory: str = item("A local directory that holds `<tag>.tar.gz` files.", default="")
    insecure: bool = item("Speak plain HTTP to the OCI registry.", default=False)
    publish: bool = item(
        "In a cluster, build once for each kernel and publish the bundle here for nodes to fetch. "
        "At most one source may set it, and it must be an OCI repository. A node ignores it.",
        default=False,
    )


@section
class Trust:
    """When a fetched bundle may be used, including one that a node fetched earlier and has in its
    cache. If both fields are set, both must hold."""

    digests: tuple[str, ...] = item(
        "Digests of the manifests of bundles that may be used, as `nodeside driver publish` prints "
        "them.",
        default=(),
        default_words="every bundle",
        pattern=patterns.SHA256,
        max_items=1024,
    )
    certificate: str = item(
        "PEM file of a certificate. Its key must have signed every module, and the manifest of "
        "the bundle, which lists every file with its sha256. `nodeside driver build` signs both "
        "with `signing.key`.",
        default="",
        default_words="signatures are not required: the transport is trusted",
    )


@section
class Prebuilt:
    """Where to find modules that were built elsewhere."""

    sources: tuple[PrebuiltSource, ...] = item(
        "Places to look, in order; the first that has the bundle is used.",
        default=(),
        default_words="nothing is fetched",
        max_items=16,
    )
    image: str = item(
        "Pull spec of driver images that are made for one kernel each. It contains {kernel}, and "
        "optionally {version}, {osVersion} or {arch}. The bundle is in /prebuilt of the image, "
        "where a node looks first. If a cluster cannot pull the image, nodes build with "
        "`spec.image`.",
        default="",
        pattern=patterns.PREBUILT_TEMPLATE,
    )
    trust: Trust = item("When a fetched bundle may be used.", default_factory=Trust)
    size_limit_mib: int = item(
        "Size limit of a fetched bundle in MiB, both packed and unpacked.",
        default=1024,
        minimum=1,
        maximum=65536,
    )
    timeout_seconds: int = item(
        "Deadline of a fetch from one source.", default=300, minimum=1, maximum=86400
    )


@section
class SysfsCheck:
    """An attribute of sysfs with an expected content: exactly one of `value` and `matches`."""

    path: str = item(
        "Attribute below /sys; a * stands for one directory name, and every match must pass.",
        pattern=patterns.SYSFS_PATH,
    )
    value: str = item("The expected content; white space at both ends is ignored.", default="")
    matches: str = item(
        "A Python regular expression that must match somewhere in the content.", default=""
    )
    write: str = item("Written to the attribute before it is read.", default="")


@section
class BoundCheck:
    """PCI devices that must be bound to a driver."""

    vendor: str = item("PCI vendor id, four lower-case hex digits.", pattern=patterns.HEX4)
    driver: str = item(
        "The driver that every such device must be bound to.", pattern=patterns.DRIVER_IN_SYSFS
    )
    device: str = item(
        "PCI device id, four lower-case hex digits.",
        default="",
        default_words="every device of the vendor",
        pattern=patterns.HEX4,
    )


@section
class CommandCheck:
    """A command that must succeed."""

    command: tuple[str, ...] = item(
        "Program and arguments, run in the driver container; exit code 0 is success.",
        min_items=1,
        max_length=8192,
    )
    timeout_seconds: int = item("Deadline of the command.", default=10, minimum=1, maximum=600)


@section
class Validate:
    """Checks that prove, after the load, that the driver works. All of them must pass."""

    devices: tuple[str, ...] = item(
        "Device nodes that must exist, such as /dev/edu0.", default=(), pattern=patterns.DEVICE_NODE
    )
    sysfs: tuple[SysfsCheck, ...] = item(
        "Attributes of sysfs and their expected content.", default=(), max_items=32
    )
    bound: tuple[BoundCheck, ...] = item("PCI devices that must be bound to a driver.", default=())
    commands: tuple[CommandCheck, ...] = item(
        "Commands that must succeed.", default=(), max_items=32
    )
    timeout_seconds: int = item(
        "How long devices, attributes and bound drivers may take to appear after the load.",
        default=10,
        minimum=1,
        maximum=600,
    )


@section
class Unload:
    """What may be unloaded. Nothing is ever unloaded by force."""

    policy: UnloadPolicy = item(
        "Whether a loaded module may be unloaded, to be replaced or because the driver is removed. "
        "`whenIdle`: when nothing uses it; `never`: only a reboot removes it.",
        default=UnloadPolicy.WHEN_IDLE,
    )
    foreign: Foreign = item(
        "What happens to a loaded module of the same name that nodeside did not load. `replace`: "
        "it is replaced, as `policy` allows; `keep`: it stays, and the driver fails.",
        default=Foreign.REPLACE,
    )


@section
class Signing:
    """Key and certificate for the signatures of modules and of bundles. They never enter the
    toolkit container."""

    key: str = item("PEM file of the private key.")
    certificate: str = item("PEM or DER file of its X.509 certificate.")


@section
class DriverSpec:
    """Everything about a driver but its name."""

    version: str = item("Version of the driver.", pattern=patterns.VERSION)
    modules: tuple[Module, ...] = item(
        "The modules, in load order. A module that another one needs is always loaded before it. "
        "Their names must differ; - and _ are the same. None ([]) for devices whose driver is the "
        "kernel's own, or that need none.",
        max_items=128,
    )
    image: str = item(
        "Pull spec of the driver image. Needed in a cluster, ignored on a node.",
        default="",
        pattern=patterns.PULL_SPEC,
    )
    hardware: Hardware = item("Which nodes have the hardware.", default_factory=Hardware)
    after: tuple[str, ...] = item(
        "Drivers that this one comes after on every node, by `metadata.name`: it is loaded once "
        "they are ready there, built with the symbols that they export, and unloaded before they "
        "are.",
        default=(),
        default_words="none",
        max_items=8,
        pattern=patterns.DRIVER_NAME,
    )
    source: Source = item("Where the source is.", default_factory=Source)
    build: Build = item("How the source becomes modules.", default_factory=Build)
    conflicts: Conflicts = item(
        "What is removed or unbound before the load.", default_factory=Conflicts
    )
    firmware: Firmware | None = item("Firmware files of the driver.", default=None)
    prebuilt: Prebuilt = item("Where to find prebuilt modules.", default_factory=Prebuilt)
    reuse: Reuse = item(
        "`exact`: only modules built for this very kernel; `crc`: also modules of another release "
        "whose imported symbols all have this kernel's CRCs.",
        default=Reuse.EXACT,
    )
    hooks: Hooks = item(
        "Commands of the driver image at a load and an unload.", default_factory=Hooks
    )
    services: tuple[Service, ...] = item(
        "Daemons of the driver image, in the order of their start: each one is ready before the "
        "next one starts, and all of them before `validate`. `nodeside driver run` keeps them up.",
        default=(),
        default_words="none",
        max_items=16,
    )
    userspace: Userspace | None = item(
        "Files of the driver image for the host and for pods.", default=None
    )
    validate: Validate = item("Checks that prove that the driver works.", default_factory=Validate)
    devices: tuple[Device, ...] = item(
        "The devices that the driver drives; `nodeside driver devices` shows them.",
        default=(),
        default_words="none are looked for",
        max_items=16,
    )
    upgrade: Upgrade = item(
        "`live`: a new version replaces the loaded one at once; `onReboot`: a running node is "
        "never touched.",
        default=Upgrade.LIVE,
    )
    unload: Unload = item("What may be unloaded.", default_factory=Unload)
    signing: Signing | None = item("Key and certificate for module signatures.", default=None)
    toolkit: Toolkit = item("Where the toolkit image comes from.", default_factory=Toolkit)
    preflight: tuple[Preflight, ...] = item(
        "Kernels to try a build for, in addition to those of the nodes.", default=(), max_items=8
    )
    rollout: Rollout = item(
        "How fast a change is rolled out to the nodes.", default_factory=Rollout
    )
    stages: tuple[Stage, ...] = item(
        "What is deployed after the driver on each node where it is ready, in order: runtime "
        "hooks, device plugin, monitoring, feature discovery. With `devices`, the first stage is "
        "`devices`, unless it is listed.",
        default=(),
        default_words="nothing",
        max_items=16,
    )
    pods: Pods = item(
        "What an administrator's policy asks of the pods that the controller makes.",
        default_factory=Pods,
    )
    privileged: bool = item(
        "Run the driver container privileged, so that commands of `validate` may open device "
        "nodes.",
        default=False,
    )


@section
class Driver:
    """A whole driver.yaml. `name` is `metadata.name`."""

    name: str = item("Name of the driver.", pattern=patterns.DRIVER_NAME)
    spec: DriverSpec = item("Everything else.")
