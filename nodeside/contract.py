"""Definitions shared between components: label keys, states, log markers, records.

The driver container and the toolkit sidecar share the build records. The node and the cluster
controller share the labels, the states, the NodeDriver status and the key. None of these is defined
anywhere else.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import Enum

from nodeside.errors import ExitCode
from nodeside.host import Kernel
from nodeside.values import frozen

API_GROUP = "nodeside.io"
API_VERSION = f"{API_GROUP}/v1alpha1"
LABEL_VALUE = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")


class State(Enum):
    """The values of the state label, a closed set. The node changes the label, never removes it."""

    WAITING = "waiting"
    BUILDING = "building"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    UNLOADING = "unloading"
    REBOOT_REQUIRED = "reboot-required"


# The reason for `waiting` after the modules were unloaded on purpose.
UNLOADED = "Unloaded"
# The reason for `waiting` while a driver that this one comes after is not ready.
WAITS_FOR_DRIVER = "WaitsForDriver"
# The reason if neither a bundle nor a toolkit could serve the node; the controller acts on it.
NOTHING_SERVED = "NoRungServed"


# Size limits of a NodeDriver, respected by the node and enforced by the API server: the controller
# keeps one NodeDriver in memory for each driver on each node.
REPORT_TEXT = 1024  # characters
REPORT_ITEMS = 64


# Feature labels that a driver has on a node at most: 16 attributes of 16 entries, and two more.
FEATURE_LIMIT = 258


class Rung(Enum):
    """The origin of a ready driver's modules, from the cheapest to the most expensive."""

    LOADED = "loaded"
    CACHED = "cached"
    FETCHED = "fetched"
    COMPATIBLE = "compatible"
    BUILT = "built"


# The environment variable with the file that says in which boot the stage before became ready.
ADMITTED_VARIABLE = "NODESIDE_ADMITTED"


def state_label(driver: str) -> str:
    """Return the key of the node label that holds a `State`."""
    return f"{API_GROUP}/{driver}.state"


def assigned_label(driver: str) -> str:
    """Return the key of the node label by which the controller assigns a node to a DaemonSet."""
    return f"{API_GROUP}/{driver}.assigned"


def feature_prefix(driver: str) -> str:
    """Return how the keys of a driver's feature labels begin; the device agent sets them.

    A driver's name has no dot, so none of them is a label of another driver.
    """
    return f"feature.{API_GROUP}/{driver}."


def dra_driver(driver: str) -> str:
    """Return the name under which devices are exposed by dynamic resource allocation.

    https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
    """
    return f"{driver}.{API_GROUP}"


def node_driver_name(driver: str, node: str) -> str:
    """Return the name of the NodeDriver object of a driver on a node."""
    return f"{driver}.{node}"


READY_PATTERN = re.compile(
    r"NODESIDE_READY driver=(?P<driver>\S+) version=(?P<version>\S+) kernel=(?P<kernel>\S+) "
    r"source=(?P<source>\S+) modules=(?P<modules>\S+)"
)


def ready_marker(status: NodeDriverStatus) -> str:
    """Return the log line for a ready driver; stable, since other components match it.

    It matches `READY_PATTERN` and is at the start of its own line in every log format.
    """
    source = status.source or Rung.LOADED
    return (
        f"NODESIDE_READY driver={status.driver} version={status.version} kernel={status.kernel} "
        f"source={source.value} modules={','.join(status.modules)}"
    )


# --- the key of a bundle ---------------------------------------------------------------------


class BuildKind(Enum):
    """The build system of a source."""

    KBUILD = "kbuild"
    DKMS = "dkms"
    COMMAND = "command"


@frozen
class BuildSettings:
    """Everything apart from source and kernel that determines the result of a build.

    `directory` is the build directory, relative to the source. `patches` are files in the source,
    applied with `patch -p1` in order. `command` is an argv for `BuildKind.COMMAND`. `modules` are
    the names of the modules that the build must produce, in load order. `symbols` is the digest of
    what the modules of other drivers export (`spec.after`), "" for none.
    """

    kind: BuildKind
    modules: tuple[str, ...]
    directory: str = "."
    make_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    symbols: str = ""


def bundle_key(
    source_digest: str, settings: BuildSettings, kernel: Kernel, certificate_digest: str = ""
) -> str:
    """Return the key of a bundle, 64 hex digits; computable without a toolkit.

    Different builds (`uname -v`) of one kernel release have different keys, and so do different
    signing certificates. `certificate_digest` is the sha256 of the DER, empty if unsigned.
    """
    inputs = {
        "source": source_digest,
        "kind": settings.kind.value,
        "modules": list(settings.modules),
        "directory": settings.directory,
        "make_arguments": list(settings.make_arguments),
        "environment": dict(settings.environment),
        "patches": list(settings.patches),
        "command": list(settings.command),
        "release": kernel.release,
        "version": kernel.version,
        "architecture": kernel.architecture,
        "certificate": certificate_digest,
    }
    if settings.symbols:  # a driver that stands alone keeps the key that it has always had
        inputs["symbols"] = settings.symbols
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def store_tag(version: str, kernel: Kernel, key: str) -> str:
    """Return a bundle's tag in a store and its directory name in a cache (OCI allows no `+`)."""
    tag = f"{version}-{kernel.release}-{kernel.architecture}-{key[:12]}"
    return re.sub(r"[^A-Za-z0-9_.-]", "_", tag)


# Matches such a tag. A file with such a name in a source was put there by nodeside.
STORE_TAG = re.compile(
    r"[A-Za-z0-9_.-]+-[A-Za-z0-9_.-]+-(x86_64|aarch64|ppc64le|s390x|riscv64|armv7l|i686)-[0-9a-f]{12}"
)


# --- the hand-off between driver and sidecar -------------------------------------------------

PROTOCOL = 1


class FailureKind(Enum):
    """The reason why a build produced no modules."""

    NO_HEADERS = "no-headers"
    WRONG_KERNEL = "wrong-kernel"
    WRONG_COMPILER = "wrong-compiler"
    NO_TOOLS = "no-tools"
    NO_EXEC = "noexec"
    EXCLUDED = "excluded"
    BAD_SOURCE = "bad-source"
    COMPILE = "compile"
    NO_MODULE = "no-module"
    DISK_FULL = "disk-full"
    OUT_OF_MEMORY = "out-of-memory"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    INTERNAL = "internal"

    @property
    def exit_code(self) -> ExitCode:
        return _FAILURE_EXIT[self]

    @property
    def reason(self) -> str:
        """The CamelCase reason for a status."""
        return "".join(word.capitalize() for word in self.value.split("-"))

    @property
    def of_the_toolkit(self) -> bool:
        """Whether the cause is a toolkit image that does not match the kernel."""
        return self in (FailureKind.NO_HEADERS, FailureKind.WRONG_KERNEL)

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without a change to the driver."""
        return self in (FailureKind.DISK_FULL, FailureKind.TIMEOUT, FailureKind.INTERNAL)

    @property
    def of_the_driver(self) -> bool:
        """Whether the cause is the driver, which cannot be built for that kernel anywhere."""
        return self in (
            FailureKind.EXCLUDED,
            FailureKind.BAD_SOURCE,
            FailureKind.COMPILE,
            FailureKind.NO_MODULE,
        )


_FAILURE_EXIT: dict[FailureKind, ExitCode] = {
    FailureKind.NO_HEADERS: ExitCode.NO_HEADERS,
    FailureKind.WRONG_KERNEL: ExitCode.TOOLCHAIN,
    FailureKind.WRONG_COMPILER: ExitCode.TOOLCHAIN,
    FailureKind.NO_TOOLS: ExitCode.TOOLCHAIN,
    FailureKind.NO_EXEC: ExitCode.TOOLCHAIN,
    FailureKind.EXCLUDED: ExitCode.EXCLUDED,
    FailureKind.BAD_SOURCE: ExitCode.SPEC,
    FailureKind.COMPILE: ExitCode.BUILD_FAILED,
    FailureKind.NO_MODULE: ExitCode.NO_MODULE,
    FailureKind.DISK_FULL: ExitCode.NO_SPACE,
    FailureKind.OUT_OF_MEMORY: ExitCode.NO_MEMORY,
    FailureKind.TIMEOUT: ExitCode.TIMEOUT,
    FailureKind.PROTOCOL: ExitCode.SYSTEM,
    FailureKind.INTERNAL: ExitCode.BUG,
}


@frozen
class BuildRequest:
    """A build request of the driver to the sidecar: `requests/<id>.json`.

    `source` is the digest of a tree in `source/`. `timeout` is in seconds, counted from the
    sidecar's start of the build.
    """

    id: str
    driver: str
    version: str
    kernel: Kernel
    boot_id: str
    source: str
    settings: BuildSettings
    timeout: float
    protocol: int = PROTOCOL


@frozen
class BuiltModule:
    """A module that the build produced. `file` is relative to `out/<request id>/`.

    `name` is the kernel's name for it (`_`, not `-`); `built_as` is the original name of the file
    if dkms renames it.
    """

    name: str
    file: str
    sha256: str
    size: int
    built_as: str = ""


@frozen
class Toolchain:
    """The toolchain of the sidecar; recorded in the bundle's manifest."""

    compiler: str
    headers: str
    symvers_sha256: str
    kernel_compiler: str = ""
    jobs: int = 1


@frozen
class BuildResult:
    """The sidecar's answer: `results/<id>.json`. Always written, even on failure.

    `first_error` is the log line with the first error of a failed build, "" if there is none;
    `log_tail` are the last lines of `out/<id>/build.log`; `command` reruns the failing step
    manually inside the toolkit container; `seconds` is the duration of each stage.
    """

    request: str
    boot_id: str
    succeeded: bool
    modules: tuple[BuiltModule, ...] = ()
    toolchain: Toolchain | None = None
    failure: FailureKind | None = None
    message: str = ""
    hint: str = ""
    first_error: str = ""
    log_tail: tuple[str, ...] = ()
    command: str = ""
    exit_code: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    finished_at: float = 0.0
    protocol: int = PROTOCOL


@frozen
class SidecarRecord:
    """The sidecar in the toolkit container: `results/sidecar.json`, valid while it holds its lock.

    `toolkit_kernel` holds the releases of its headers, separated by commas.
    """

    pid: int
    boot_id: str
    started_at: float
    toolkit_kernel: str = ""
    protocol: int = PROTOCOL


# --- the state on the node -------------------------------------------------------------------


@frozen
class LoadedModule:
    """A module that we loaded. `parameters` are as requested: sysfs cannot show them all."""

    name: str
    build_id: str
    parameters: Mapping[str, str]


class HooksRun(Enum):
    """The last hooks that have run for loaded modules, so that none is repeated."""

    NONE = ""
    AFTER_LOAD = "afterLoad"
    BEFORE_UNLOAD = "beforeUnload"


@frozen
class LoadedRecord:
    """`/run/nodeside-locks/<driver>.loaded.json`: the modules nodeside loaded, in load order.

    The record is valid in the boot `boot_id` only. `devices` are the device numbers (c10:123) that
    appeared at the load: they identify open files that hold the modules. `after` are the drivers
    that this one comes after: it has to leave before them, unless it `stays` until a reboot.
    `trust` is the mark of the `spec.prebuilt.trust` at the load, to detect a change; "" for none.
    `mark` is the end of the kernel log before the load, kept until the modules have passed
    validation once. `splat` is the kernel's complaint since then, kept permanently. `hooks` says
    which hooks have run.
    """

    driver: str
    version: str
    key: str
    boot_id: str
    source: Rung
    modules: tuple[LoadedModule, ...]
    devices: tuple[str, ...] = ()
    trust: str = ""
    mark: tuple[str, ...] | None = None
    splat: str = ""
    hooks: HooksRun = HooksRun.NONE
    after: tuple[str, ...] = ()
    stays: bool = False

    def has_one_of(self, modules: Iterable[LoadedModule]) -> bool:
        """Return whether the record contains one of these builds."""
        ours = {module.build_id for module in self.modules if module.build_id}
        return any(module.build_id in ours for module in modules)

    def has_all_of(self, modules: Iterable[LoadedModule]) -> bool:
        """Return whether the record contains all of these builds. Of none it does not."""
        ours = {module.build_id for module in self.modules if module.build_id}
        asked = [module.build_id for module in modules]
        return bool(asked) and ours.issuperset(asked)


@frozen
class ServiceStatus:
    """A service of a driver; `restarts` are those by the driver container's current process.

    `message` says why it is not ready.
    """

    name: str
    ready: bool
    restarts: int = 0
    message: str = ""


@frozen
class NodeDriverStatus:
    """The status of a NodeDriver object; also what `nodeside driver status` prints.

    In the object, texts have at most `REPORT_TEXT` characters, and lists and mappings at most
    `REPORT_ITEMS` entries. `source` is the rung that provided the modules; `toolkit` is the image
    of the pod's sidecar, "" if it has none; `stages` maps a stage to its duration in seconds;
    `services` are in the order of their start.
    """

    driver: str
    node: str
    state: State
    version: str
    kernel: str
    boot_id: str
    reason: str = ""
    message: str = ""
    hint: str = ""
    source: Rung | None = None
    key: str = ""
    revision: str = ""
    toolkit: str = ""
    modules: tuple[str, ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    services: tuple[ServiceStatus, ...] = ()
