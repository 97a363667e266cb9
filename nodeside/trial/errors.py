"""The errors before the node side gets to run: no kernel, no machine, no network."""

from __future__ import annotations

from nodeside.errors import ExitCode, NodesideError


class TrialError(NodesideError):
    """A throwaway machine that could not be made, or that did not boot."""

    exit_code = ExitCode.TRIAL
    reason = "TrialFailed"


class ArchiveError(TrialError):
    """A package archive that did not deliver."""

    reason = "ArchiveFailed"


class UnknownKernel(TrialError):
    """A kernel name that is not in the archive."""

    exit_code = ExitCode.USAGE
    reason = "UnknownKernel"


class TargetError(TrialError):
    """A target that is not a driver that can be tried."""

    exit_code = ExitCode.USAGE
    reason = "UnknownTarget"


class MachineLost(TrialError):
    """A machine that ended, or whose agent fell silent, while a reply was expected."""

    reason = "MachineLost"
