"""The exceptions that end a build without modules."""

from __future__ import annotations

from nodeside.errors import NodesideError
from nodeside.protocol.build_records import FailureKind


class BuildFailed(NodesideError):
    """A failed build. The driver's side acts on `kind`.

    `command` repeats the failing step by hand; `step_exit_code` is that step's exit code.
    """

    reason = "BuildFailed"

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        hint: str = "",
        command: str = "",
        step_exit_code: int = 0,
    ) -> None:
        super().__init__(message, hint=hint, retryable=kind.retryable)
        self.kind = kind
        self.exit_code = kind.exit_code
        self.command = command
        self.step_exit_code = step_exit_code


class Withdrawn(NodesideError):
    """Removal of the request by the driver during its build. No result is expected any more."""

    reason = "Withdrawn"
