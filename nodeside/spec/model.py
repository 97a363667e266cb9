"""driver.yaml as typed values: the single definition of a driver.

These classes are the schema. `schema.py` reads their fields; `rules.py` holds the rules over
several fields. The strict parser, its messages, the JSON schema, the CRD's OpenAPI schema and
docs/driver-yaml.md are derived from them. JSON names are the camelCase of the field names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from nodeside.contract import BuildKind
from nodeside.spec import patterns
from nodeside.spec.fleet import Preflight, Rollout, Stage, Toolkit
from nodeside.spec.schema import item, section


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


@section
class PciId:
    """A PCI device by its ids, as `lspci -n` prints them."""

    vendor: str = item("PCI vendor id, four lower-case hex digits.", pattern=patterns.HEX4)
    device: str = item(
        "PCI device id, four lower-case hex digits.",
        default="",
        default_words="every device of the vendor",
        pattern=patterns.HEX4,
    )


@section
class Hardware:
    """Which nodes have the hardware. A node must fit both fields."""

    pci: tuple[PciId, ...] = item(
        "A node with any of these devices has the hardware.", default=(), default_words="every node"
    )
    node_selector: Mapping[str, str] = item(
        "Labels that a node must have besides.",
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
        "What in it is no source: neither in the digest nor in the build. A name, looked for in "
        "every directory, or a path from the source's directory, with `*`, `?` and `[...]` for "
        "parts of a name. What is in an excluded directory is excluded with it.",
        default=(),
        default_words="only what never is source",
        pattern=patterns.RELATIVE_PATH,
        max_length=255,
    )


@section
class Build:
    """How source becomes modules. The build runs in the toolkit container, without privilege."""

    kind: BuildKind | None = item(
        "`kbuild`: make with the kernel's build system; `dkms`: as dkms would do it, by the "
        "source's dkms.conf; `command`: run `command`.",
        default=None,
        default_words="`dkms` where the source has a dkms.conf, else `kbuild`",
    )
    directory: str = item(
        "Where in the source to build.",
        default=".",
        default_words="the source directory",
        pattern=patterns.RELATIVE_PATH,
    )
    make_arguments: tuple[str, ...] = item(
        "Further arguments of make, such as `CONFIG_EDU=m`.", default=()
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
    timeout_seconds: int = item("Deadline of the build.", default=3600, minimum=1, maximum=86400)
    memory_limit_mib: int = item(
        "Memory that a build may use, in MiB: the limit of the toolkit container and of a build "
        "Job's. A build gets one job for each 512 MiB at most. A node ignores it.",
        default=8192,
        minimum=256,
        maximum=1048576,
    )


@section
class Module:
    """A module that the build gives and that is to be loaded."""

    name: str = item(
        "Name of the module; - and _ are the same.",
        pattern=patterns.MODULE_NAME,
        max_length=patterns.MODULE_NAME_LIMIT,
    )
    parameters: Mapping[str, str] = item(
        'Parameters for the load, all as strings: `debug: "1"`. One that the module does not '
        "declare is refused before the load.",
        default_factory=dict,
        key_pattern=patterns.PARAMETER_NAME,
        pattern=patterns.PARAMETER_VALUE,
    )


@section
class Conflicts:
    """What must go before the load."""

    modules: tuple[str, ...] = item(
        "In-tree modules that are removed before the load.",
        default=(),
        pattern=patterns.MODULE_NAME,
        max_length=patterns.MODULE_NAME_LIMIT,
    )
    unbind: tuple[PciId, ...] = item(
        "PCI devices that are unbound from whatever driver has them.", default=()
    )


@section
class Firmware:
    """Firmware files that the driver asks the kernel for."""

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
        "In a cluster, build once for each kernel and publish here, for nodes to fetch. At most "
        "one source, an OCI repository; a node ignores it.",
        default=False,
    )


@section
class Trust:
    """What makes a fetched bundle acceptable, also one that a node fetched before and has in its
    cache. With both fields, both must hold."""

    digests: tuple[str, ...] = item(
        "Digests of the manifests of bundles that may be used, as `nodeside driver publish` prints "
        "them.",
        default=(),
        default_words="every bundle",
        pattern=patterns.SHA256,
        max_items=1024,
    )
    certificate: str = item(
        "PEM file: the manifest of the bundle, which names every file by its sha256, and every "
        "module must be signed by its key. `nodeside driver build` signs both with "
        "`signing.key`.",
        default="",
        default_words="signatures are not asked for: the transport is trusted",
    )


@section
class Prebuilt:
    """Where modules that somebody else built may be found."""

    sources: tuple[PrebuiltSource, ...] = item(
        "Places to look, in order; the first that has the bundle serves.",
        default=(),
        default_words="nothing is fetched",
        max_items=16,
    )
    image: str = item(
        "Pull spec of a driver image that was made for one kernel, with {kernel} in it and perhaps "
        "{version}, {osVersion} or {arch}. Its bundle lies in /prebuilt, where a "
        "node looks first. Where a cluster cannot pull it, nodes build with the image of all "
        "kernels.",
        default="",
        pattern=patterns.PULL_SPEC,
    )
    trust: Trust = item("What makes a fetched bundle acceptable.", default_factory=Trust)
    size_limit_mib: int = item(
        "Largest bundle that is fetched, in MiB, also when unpacked.",
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
        "Attribute below /sys; a * stands for one directory name, and each one found must pass.",
        pattern=patterns.SYSFS_PATH,
    )
    value: str = item("The expected content; white space at both ends does not count.", default="")
    matches: str = item(
        "A Python regular expression that must match somewhere in the content.", default=""
    )
    write: str = item("Written to the attribute before it is read.", default="")


@section
class BoundCheck:
    """PCI devices that a driver must have."""

    vendor: str = item("PCI vendor id, four lower-case hex digits.", pattern=patterns.HEX4)
    driver: str = item(
        "The driver that must have every such device.", pattern=patterns.DRIVER_IN_SYSFS
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
    """What proves, after the load, that the driver works. All of it must hold."""

    devices: tuple[str, ...] = item(
        "Device nodes that must exist, such as /dev/edu0.", default=(), pattern=patterns.DEVICE_NODE
    )
    sysfs: tuple[SysfsCheck, ...] = item(
        "Attributes of sysfs that must have a content.", default=(), max_items=32
    )
    bound: tuple[BoundCheck, ...] = item("PCI devices that a driver must have.", default=())
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
        "Whether a loaded module may be unloaded, to be replaced or because the driver goes away: "
        "`whenIdle`, when nothing uses it; `never`, only a reboot takes it out.",
        default=UnloadPolicy.WHEN_IDLE,
    )
    foreign: Foreign = item(
        "What happens to a loaded module of the same name that nodeside did not load: `replace`, "
        "as `policy` says; `keep`, the driver fails.",
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
        "The modules, in load order. One that another one needs is loaded before it in any case. "
        "Their names must differ; - and _ are the same.",
        min_items=1,
        max_items=128,
    )
    image: str = item(
        "Pull spec of the driver image. Needed in a cluster, ignored on a node.",
        default="",
        pattern=patterns.PULL_SPEC,
    )
    hardware: Hardware = item("Which nodes have the hardware.", default_factory=Hardware)
    source: Source = item("Where the source is.", default_factory=Source)
    build: Build = item("How source becomes modules.", default_factory=Build)
    conflicts: Conflicts = item("What must go before the load.", default_factory=Conflicts)
    firmware: Firmware | None = item("Firmware files of the driver.", default=None)
    prebuilt: Prebuilt = item("Where prebuilt modules may be found.", default_factory=Prebuilt)
    reuse: Reuse = item(
        "`exact`: only modules built for this very kernel; `crc`: also modules of another release "
        "whose imported symbols all have this kernel's CRCs.",
        default=Reuse.EXACT,
    )
    validate: Validate = item("What proves that the driver works.", default_factory=Validate)
    upgrade: Upgrade = item(
        "`live`: a new version replaces the loaded one at once; `onReboot`: a running node is "
        "never touched.",
        default=Upgrade.LIVE,
    )
    unload: Unload = item("What may be unloaded.", default_factory=Unload)
    signing: Signing | None = item("Key and certificate for module signatures.", default=None)
    toolkit: Toolkit = item("Where the toolkit image comes from.", default_factory=Toolkit)
    preflight: tuple[Preflight, ...] = item(
        "Kernels to try a build for, besides those of the nodes.", default=(), max_items=8
    )
    rollout: Rollout = item("How fast a change goes through the nodes.", default_factory=Rollout)
    stages: tuple[Stage, ...] = item(
        "What follows the driver on each node where it is ready, in order: runtime hooks, device "
        "plugin, monitoring, feature discovery.",
        default=(),
        default_words="nothing follows",
        max_items=16,
    )
    privileged: bool = item(
        "Run the driver container privileged: commands of `validate` may open device nodes.",
        default=False,
    )


@section
class Driver:
    """A whole driver.yaml. `name` is `metadata.name`."""

    name: str = item("Name of the driver.", pattern=patterns.DRIVER_NAME)
    spec: DriverSpec = item("Everything else.")
