"""The errors of a load or an unload. `refusals` has the words for what the kernel says."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from nodeside.driver.kernel.refusals import KernelExplanation
from nodeside.driver.node.kernel_log import Excerpt, find_splats
from nodeside.errors import ExitCode, NodesideError

_LINES = 20  # kernel log lines shown in a message


class LoadFailed(NodesideError):
    """A module that the kernel refused to load. `reason` is one CamelCase word."""

    exit_code = ExitCode.LOAD_FAILED
    reason = "LoadFailed"

    def __init__(
        self,
        module: str,
        explanation: KernelExplanation,
        *,
        errno_name: str = "",
        excerpt: Excerpt | None = None,
        retryable: bool = False,
    ) -> None:
        excerpt = excerpt or Excerpt()
        prefix = f"{errno_name}: " if errno_name else ""
        rows = [f"cannot load {module}: {prefix}{explanation.meaning}"]
        rows += [f"  kernel: {line}" for line in _relevant_lines(excerpt.lines)]
        rows += [f"  ({excerpt.note})"] if excerpt.note else []
        super().__init__("\n".join(rows), hint=explanation.hint, retryable=retryable)
        self.reason = explanation.reason


class CannotUnload(NodesideError):
    """A failed unload. `removed` lists the modules that were unloaded before the failure."""

    removed: tuple[str, ...] = ()


class InUse(CannotUnload):
    """A module that cannot be unloaded because something holds it.

    It is retryable. Until a retry succeeds, the state is reboot-required: see
    `Journal.report_failure`.
    """

    exit_code = ExitCode.IN_USE
    reason = "InUse"
    retryable = True


class RebootRequired(CannotUnload):
    """A module that must stay until the next boot: permanent, stuck, or kept by the policy."""

    exit_code = ExitCode.REBOOT_REQUIRED
    reason = "RebootRequired"


class UnloadFailed(CannotUnload):
    """An unload that the kernel refused for a reason unrelated to the module."""

    reason = "UnloadFailed"


def errno_name(error: int) -> str:
    """Return an errno as text, such as `ENOEXEC (Exec format error)`."""
    return f"{errno.errorcode.get(error, f'errno {error}')} ({os.strerror(error)})"


def _relevant_lines(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines to show: from the first line of a splat on, or else the last lines."""
    heads = find_splats(lines)
    for number, line in enumerate(lines):
        if heads and line.endswith(heads[0]):
            return lines[number : number + _LINES]
    return lines[-_LINES:]
