"""The exceptions for all expected failures, each with its exit code.

Libraries raise these; only a `cli.py` prints them and picks the exit code. Any other exception is a
bug in nodeside and shows its traceback.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

_LONGEST = 1 << 15  # characters of a message; a part of it may be a build's or a store's own text
_CUT = " [cut]"


class ExitCode(IntEnum):
    """The exit codes of all commands, the same in a shell, in a pod and in `nodeside try`.

    10, 21 and 77 are the codes of dkms, which its users know (dkms(8), `die` calls).
    """

    OK = 0
    BUG = 1
    USAGE = 2
    SPEC = 3
    BUILD_FAILED = 10
    NO_MODULE = 11
    NO_HEADERS = 21
    TOOLCHAIN = 22
    BUNDLE = 30
    FETCH = 31
    SIGNING = 32
    REFUSED = 40
    LOAD_FAILED = 41
    VALIDATION_FAILED = 42
    IN_USE = 43
    REBOOT_REQUIRED = 44
    LOCKED = 45
    NOT_READY = 46
    PROGRAM_FAILED = 47
    WAITS_FOR_DRIVER = 48
    TIMEOUT = 50
    NO_SPACE = 51
    SYSTEM = 52
    NO_MEMORY = 53
    CLUSTER = 60
    TRIAL = 70
    EXCLUDED = 77
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """One sentence for `--help`, the README and the docs; a test compares them."""
        return _MEANINGS[self]


_MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done; for `run --once`, the driver is ready",
    ExitCode.BUG: "a bug in nodeside: please report the traceback",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.SPEC: "driver.yaml is wrong",
    ExitCode.BUILD_FAILED: "the module does not compile",
    ExitCode.NO_MODULE: "the build succeeded, but did not produce a module that driver.yaml names",
    ExitCode.NO_HEADERS: "no kernel headers for exactly this kernel",
    ExitCode.TOOLCHAIN: "the toolkit cannot build for this kernel (compiler, kbuild tools, noexec)",
    ExitCode.BUNDLE: "a bundle is damaged, hostile, or not what it claims to be",
    ExitCode.FETCH: "no source could deliver the prebuilt modules",
    ExitCode.SIGNING: "signing failed, or the key and the certificate do not match",
    ExitCode.REFUSED: "a check before the load refused the module; the kernel never saw it",
    ExitCode.LOAD_FAILED: "the kernel refused the module",
    ExitCode.VALIDATION_FAILED: "the module is loaded, but does not do what driver.yaml declares",
    ExitCode.IN_USE: "a module is in use and the unload policy keeps it",
    ExitCode.REBOOT_REQUIRED: "only a reboot can replace the loaded module with the wanted one",
    ExitCode.LOCKED: "another process is working on this driver on this node",
    ExitCode.NOT_READY: "`status`: the driver is not ready on this node",
    ExitCode.PROGRAM_FAILED: "a hook or a service of the driver failed",
    ExitCode.WAITS_FOR_DRIVER: "a driver that this one comes after is not ready on this node",
    ExitCode.TIMEOUT: "a deadline passed",
    ExitCode.NO_SPACE: "a disk is full",
    ExitCode.SYSTEM: "the system refused an operation (permission, missing tool, I/O error)",
    ExitCode.NO_MEMORY: "a build needs more memory than it may use",
    ExitCode.CLUSTER: "the Kubernetes API server refused or did not answer",
    ExitCode.TRIAL: "the throwaway machine could not be made or did not boot",
    ExitCode.EXCLUDED: "the driver's BUILD_EXCLUSIVE or OBSOLETE_BY excludes this kernel",
    ExitCode.INTERRUPTED: "interrupted",
}


class NodesideError(Exception):
    """An expected failure. The message names what failed, on which object, and what was expected.

    `hint` is one line on what to do next, if possible a command. `reason` is a CamelCase word
    for status conditions and Events. `retryable` tells whether the same step may succeed later
    without any change. A message has a limited length: it may be logged again and again.
    """

    exit_code: ExitCode = ExitCode.SYSTEM
    reason: str = "SystemError"
    retryable: bool = False

    def __init__(self, message: str, *, hint: str = "", retryable: bool | None = None) -> None:
        super().__init__(_limit_text(message))
        self.hint = _limit_text(hint)
        if retryable is not None:
            self.retryable = retryable


def make_encodable(text: str) -> str:
    """Escape the surrogates of file names that are not UTF-8, so that the text can be written."""
    return text.encode(errors="backslashreplace").decode()


def _limit_text(text: str) -> str:
    text = make_encodable(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - len(_CUT)] + _CUT


class SpecError(NodesideError):
    """A driver.yaml that does not follow the schema.

    `places` are what the lines of the message begin with, `FILE:LINE` or `FILE:LINE:COLUMN`; empty
    if the message names no line.
    """

    exit_code = ExitCode.SPEC
    reason = "InvalidSpec"

    def __init__(self, message: str, *, hint: str = "", places: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.places = tuple(places)


class UsageError(NodesideError):
    """A mistake on the command line that only shows when the command runs."""

    exit_code = ExitCode.USAGE
    reason = "Usage"


class NoHeaders(NodesideError):
    """There are no headers for the requested kernel."""

    exit_code = ExitCode.NO_HEADERS
    reason = "NoHeaders"


class Bug(NodesideError):
    """An unexpected exception that the process survives. Its traceback is in the log."""

    exit_code = ExitCode.BUG
    reason = "Bug"
    retryable = True

    def __init__(self, cause: Exception) -> None:
        what = f"{type(cause).__name__}: {cause}"
        super().__init__(
            f"a bug in nodeside: {''.join(c for c in what if c.isprintable())[:300]}",
            hint="please report it with the traceback in the log",
        )


class SystemRefused(NodesideError):
    """The operating system refused: a permission, a missing tool, an I/O error."""


class NoSpace(NodesideError):
    """A disk is full. Retryable, since space may be freed elsewhere."""

    exit_code = ExitCode.NO_SPACE
    reason = "NoSpace"
    retryable = True


class DeadlinePassed(NodesideError):
    """A deadline passed before the awaited event."""

    exit_code = ExitCode.TIMEOUT
    reason = "DeadlinePassed"
    retryable = True


class Locked(NodesideError):
    """Another actor holds the lock of this driver on this node."""

    exit_code = ExitCode.LOCKED
    reason = "Locked"
    retryable = True
