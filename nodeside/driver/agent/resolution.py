"""Resolve a task, and report a failure to the cluster.

A journal reports the failures of a task, and there is no task for an invalid driver.yaml.

A node whose driver.yaml cannot be read must not look as if nothing had been tried. The status
reports what is still known: the driver's name comes from the file if that part is valid, otherwise
from the last successful read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nodeside import log
from nodeside.driver.ladder.task import Config, Task, resolve_task
from nodeside.errors import Bug, NodesideError
from nodeside.protocol.node_status import NodeDriverStatus, State
from nodeside.spec import peek_driver_name

_UNKNOWN = "unknown"  # a NodeDriver must have a version


@dataclass
class LastRead:
    """Name and version from the last successful read, for when driver.yaml cannot be read."""

    name: str = ""
    version: str = ""


def resolve_or_announce(
    config: Config,
    announce: Callable[[NodeDriverStatus], None],
    last: LastRead,
    *,
    expected_kernel: str = "",
) -> Task:
    """Resolve the task of a config. On an error, announce it as a failure and raise it.

    Raises what `resolve_task` raises; an unexpected exception becomes a Bug. A pod that was made
    for another kernel announces nothing: the pod for the running kernel does.
    """
    try:
        task = resolve_task(config)
    except Exception as exc:
        error = exc if isinstance(exc, NodesideError) else Bug(exc)
        if error is not exc:
            log.traceback(exc)
        _announce_failure(config, announce, last, error, expected_kernel)
        raise error from None
    last.name, last.version = task.name, task.version
    return task


def _announce_failure(
    config: Config,
    announce: Callable[[NodeDriverStatus], None],
    last: LastRead,
    error: NodesideError,
    expected_kernel: str,
) -> None:
    name, version = peek_driver_name(config.driver_file)
    about = LastRead(name or last.name, version or last.version or _UNKNOWN)
    if not about.name:
        log.warning(
            "failure not announced: metadata.name cannot be read, so the driver is unknown",
            file=config.driver_file,
        )
        return
    try:
        status = _failure_status(config, about, error)
    except NodesideError as problem:
        log.warning(
            "failure not announced: the node cannot be read", driver=about.name, why=problem
        )
        return
    if expected_kernel in ("", status.kernel):
        announce(status)


def _failure_status(config: Config, about: LastRead, error: NodesideError) -> NodeDriverStatus:
    return NodeDriverStatus(
        driver=about.name,
        node=config.node,
        state=State.FAILED,
        version=about.version,
        kernel=config.host.kernel.release,
        boot_id=config.host.boot_id,
        reason=error.reason,
        message=str(error),
        hint=error.hint,
        revision=config.revision,
        toolkit=config.toolkit,
    )
