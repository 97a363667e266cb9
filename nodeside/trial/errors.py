"""What can go wrong before the node side has had a chance: no kernel, no machine, no network."""

from __future__ import annotations

from nodeside.errors import ExitCode, NodesideError


class TrialError(NodesideError):
    """The throwaway machine could not be made, or did not boot."""

    exit_code = ExitCode.TRIAL
    reason = "TrialFailed"


class ArchiveError(TrialError):
    """The package archive did not deliver."""

    reason = "ArchiveFailed"


class UnknownKernel(TrialError):
    """No kernel of that name is in the archive."""

    exit_code = ExitCode.USAGE
    reason = "UnknownKernel"


class TargetError(TrialError):
    """What the user named is no driver that can be tried."""

    exit_code = ExitCode.USAGE
    reason = "UnknownTarget"


class MachineLost(TrialError):
    """The machine ended, or its agent fell silent, while something was expected of it."""

    reason = "MachineLost"
