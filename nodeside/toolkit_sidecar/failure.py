"""How a build ends other than with modules."""

from __future__ import annotations

from nodeside.contract import FailureKind
from nodeside.errors import NodesideError


class BuildFailed(NodesideError):
    """No modules, and the kind that the driver's side acts upon.

    `command` repeats the failing step by hand; `step_exit_code` is what that step returned.
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
    """The driver removed the request while it was being built: nobody waits for an answer."""

    reason = "Withdrawn"
