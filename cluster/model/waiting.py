"""Why the containers of a pod do not start."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nodeside.errors import ExitCode

# The kubelet's reason for a container that it starts again later, since it ended too often.
CRASH_LOOP: Final = "CrashLoopBackOff"


@dataclass(frozen=True, slots=True)
class Crash:
    """How a container in a crash loop ended last, and how often it was started again.

    `reason` and `message` are the container runtime's. `is_ours`: it runs nodeside, whose exit
    codes have a meaning.
    """

    code: int
    reason: str = ""
    message: str = ""
    restarts: int = 0
    is_ours: bool = False

    def __str__(self) -> str:
        times = "once" if self.restarts == 1 else f"{self.restarts} times"
        return f"Crashed: exit code {self.code} ({self.meaning}), restarted {times}"

    @property
    def meaning(self) -> str:
        """What the exit code says."""
        if self.reason == "OOMKilled":
            return "killed by SIGKILL: out of memory, it may use no more"
        if self.reason in _NOT_STARTED:
            return ": ".join(filter(None, ("it could not be started", self.message)))
        if self.is_ours and self.code in _OURS:
            return ExitCode(self.code).meaning
        if self.code in _USUAL:
            return _USUAL[self.code]
        if self.code - _SIGNALLED in _SIGNALS:
            return f"killed by {signal.Signals(self.code - _SIGNALLED).name}"
        return "an exit code of the program itself: its log says more"


# Reasons of containerd and CRI-O for a container that never ran.
_NOT_STARTED: Final = ("StartError", "ContainerCannotRun")
_OURS: Final = frozenset(ExitCode) - {ExitCode.OK}
_SIGNALLED: Final = 128  # and the number of the signal
_SIGNALS: Final = frozenset(signal.Signals)
# What shells and container runtimes mean by a code.
_USUAL: Final[Mapping[int, str]] = {
    0: "it ended without an error, but is to keep running",
    1: "an error: its log says more",
    126: "its program may not be executed",
    127: "its program, or one that it calls, is not in the image",
    134: "SIGABRT: the program gave up on itself",
    137: "killed by SIGKILL: mostly for its memory, or since it did not end in time",
    139: "killed by SIGSEGV: it used memory that is not its own, a bug in the program",
    143: "ended by SIGTERM: it was told to end, as by a failed liveness probe",
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not start, as the kubelet says it; or why a pod is not scheduled.

    `crash` is how it ended last, if the reason is that it crashes again and again.
    """

    reason: str
    message: str = ""
    crash: Crash | None = None

    def __str__(self) -> str:
        if self.crash is not None:
            return str(self.crash)
        return f"{self.reason}: {self.message}" if self.message else self.reason


def waiting_message(waiting: Mapping[str, Waiting]) -> str:
    """Return why containers do not start, each with its name."""
    return "; ".join(f"{container}: {why}" for container, why in waiting.items())
