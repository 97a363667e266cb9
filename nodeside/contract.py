"""Everything that two parts must agree on: label keys, state words, log markers, records.

The driver container and the toolkit sidecar share the build records; the node and the cluster
controller share the labels, the state words, the NodeDriver status and the key. Nobody spells any
of these a second time.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from nodeside.errors import ExitCode
from nodeside.host import Kernel

API_GROUP = "nodeside.io"
API_VERSION = f"{API_GROUP}/v1alpha1"
LABEL_VALUE = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")


class State(Enum):
    """The value of the state label: a closed set, changed and never removed by the node."""

    WAITING = "waiting"
    BUILDING = "building"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    UNLOADING = "unloading"
    REBOOT_REQUIRED = "reboot-required"


# The reason that stands beside `waiting` where the modules were taken out of the kernel on purpose.
UNLOADED = "Unloaded"
# The reason of a node where neither a bundle nor a toolkit served; the controller acts on it.
NOTHING_SERVED = "NoRungServed"


# The limits of a NodeDriver, which the node keeps and the API server holds it to: a controller has
# one of them in memory for each driver on each node.
REPORT_TEXT = 1024  # characters
REPORT_ITEMS = 64


class Rung(Enum):
    """Where the modules of a ready driver came from, from the cheapest to the dearest."""

    LOADED = "loaded"
    CACHED = "cached"
    FETCHED = "fetched"
    COMPATIBLE = "compatible"
    BUILT = "built"


def state_label(driver: str) -> str:
    """The node label that carries a `State`."""
    return f"{API_GROUP}/{driver}.state"


def assigned_label(driver: str) -> str:
    """The node label by which the controller assigns a node to a DaemonSet."""
    return f"{API_GROUP}/{driver}.assigned"


def node_driver_name(driver: str, node: str) -> str:
    """The name of the NodeDriver object of a driver on a node."""
    return f"{driver}.{node}"


READY_PATTERN = re.compile(
    r"NODESIDE_READY driver=(?P<driver>\S+) version=(?P<version>\S+) kernel=(?P<kernel>\S+) "
    r"source=(?P<source>\S+) modules=(?P<modules>\S+)"
)


def ready_marker(
    driver: str, version: str, kernel: str, source: Rung, modules: tuple[str, ...]
) -> str:
    """The log line that says a driver is ready; stable, other components match it.

    It matches `READY_PATTERN` and starts a line of its own in every log format.
    """
    return (
        f"NODESIDE_READY driver={driver} version={version} kernel={kernel} "
        f"source={source.value} modules={','.join(modules)}"
    )


# --- the key of a bundle ---------------------------------------------------------------------


class BuildKind(Enum):
    """How source becomes modules."""

    KBUILD = "kbuild"
    DKMS = "dkms"
    COMMAND = "command"


@dataclass(frozen=True)
class BuildSettings:
    """Everything besides source and kernel that decides what a build produces.

    `directory` is where to build, relative to the source. `patches` are files of the source,
    applied with `patch -p1` in order. `command` is an argv for `BuildKind.COMMAND`. `modules` are
    the names that must come out, in load order.
    """

    kind: BuildKind
    modules: tuple[str, ...]
    directory: str = "."
    make_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def bundle_key(
    source_digest: str, settings: BuildSettings, kernel: Kernel, certificate_digest: str = ""
) -> str:
    """The key of a bundle, 64 hex digits: computable without a toolkit.

    Two kernels of one release but another build (`uname -v`) have different keys; so have two
    signing certificates (sha256 of the DER; empty: not signed).
    """
    wanted = {
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
    canonical = json.dumps(wanted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def store_tag(version: str, kernel: Kernel, key: str) -> str:
    """The tag of a bundle in a store and its directory name in a cache (OCI allows no `+`)."""
    tag = f"{version}-{kernel.release}-{kernel.architecture}-{key[:12]}"
    return re.sub(r"[^A-Za-z0-9_.-]", "_", tag)


# What such a tag looks like: a file of this name in a source was put there by nodeside.
STORE_TAG = re.compile(
    r"[A-Za-z0-9_.-]+-[A-Za-z0-9_.-]+-(x86_64|aarch64|ppc64le|s390x|riscv64|armv7l|i686)-[0-9a-f]{12}"
)


# --- the hand-off between driver and sidecar -------------------------------------------------

PROTOCOL = 1


class FailureKind(Enum):
    """Why a build gave no modules."""

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
        """The word for it in a status."""
        return "".join(word.capitalize() for word in self.value.split("-"))

    @property
    def of_the_toolkit(self) -> bool:
        """Whether the toolkit image is not one of the kernel."""
        return self in (FailureKind.NO_HEADERS, FailureKind.WRONG_KERNEL)

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without anybody changing the driver."""
        return self in (FailureKind.DISK_FULL, FailureKind.TIMEOUT, FailureKind.INTERNAL)

    @property
    def of_the_driver(self) -> bool:
        """Whether it is the driver that does not build for that kernel, wherever it is tried."""
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


@dataclass(frozen=True)
class BuildRequest:
    """What the driver asks of the sidecar: `requests/<id>.json`.

    `source` is the digest of a tree in `source/`. `timeout` is in seconds, from the moment the
    sidecar starts the build.
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


@dataclass(frozen=True)
class BuiltModule:
    """A module that came out. `file` is relative to `out/<request id>/`.

    `name` is the name the kernel will know it by (`_`, not `-`); `built_as` is the file's own
    name where dkms renames it.
    """

    name: str
    file: str
    sha256: str
    size: int
    built_as: str = ""


@dataclass(frozen=True)
class Toolchain:
    """What the sidecar built with; recorded in the bundle's manifest."""

    compiler: str
    headers: str
    symvers_sha256: str
    kernel_compiler: str = ""
    jobs: int = 1


@dataclass(frozen=True)
class BuildResult:
    """The sidecar's answer: `results/<id>.json`. Always written, also on failure.

    `first_error` is the line of a failed build that names its first error, "" if none does;
    `log_tail` are the last lines of `out/<id>/build.log`; `command` repeats the failing step by
    hand inside the toolkit container; `seconds` is the time of each stage.
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


@dataclass(frozen=True)
class SidecarRecord:
    """Who lives in the toolkit container: `results/sidecar.json`, while it holds its lock.

    `toolkit_kernel` are the releases whose headers it has, joined by commas.
    """

    pid: int
    boot_id: str
    started_at: float
    toolkit_kernel: str = ""
    protocol: int = PROTOCOL


# --- what stands on the node -----------------------------------------------------------------


@dataclass(frozen=True)
class LoadedModule:
    """One module that we loaded. `parameters` are as asked: sysfs cannot show them all."""

    name: str
    build_id: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class LoadedRecord:
    """`/run/nodeside-locks/<driver>.loaded.json`: what nodeside loaded in this boot, in load order.

    `devices` are the device numbers (`major:minor`) that appeared with it: they tell whose open
    files hold it. `trust` tells the `spec.prebuilt.trust` under which it was loaded from another
    one; "" for none. `mark` is the end of the kernel log before the load, kept until the modules
    have passed a validation once; `splat` is what the kernel complained of since, kept for good.
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

    def has_one_of(self, modules: Iterable[LoadedModule]) -> bool:
        """Whether one of these builds is among what was loaded."""
        ours = {module.build_id for module in self.modules if module.build_id}
        return any(module.build_id in ours for module in modules)


@dataclass(frozen=True)
class NodeDriverStatus:
    """The status of a NodeDriver object; also what `nodeside driver status` prints.

    In the object no text is longer than `REPORT_TEXT`, and no list or mapping than `REPORT_ITEMS`.

    `source` is the rung that served; `toolkit` is the image that the pod's sidecar is of, "" if it
    has none; `stages` maps a stage to its seconds.
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
