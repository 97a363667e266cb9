"""The records of the hand-off between the driver container and the toolkit sidecar.

shared_directory.py says where they are. Stdlib only: the toolkit sidecar uses it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from nodeside.errors import ExitCode
from nodeside.protocol.bundle_key import BuildSettings
from nodeside.system.host import Kernel
from nodeside.values import frozen

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
