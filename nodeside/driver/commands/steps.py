"""Steps of a dry run that more than one verb would take, in words: hooks and services."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from nodeside.driver.ladder.task import Task
from nodeside.spec.services import Hook


def hook_steps(hooks: Iterable[Hook]) -> list[str]:
    """Return a step for each hook."""
    return [f"run {shlex.join(hook.command)}" for hook in hooks]


def service_steps(task: Task) -> list[str]:
    """Return what `run` would do; other commands start no service."""
    names = ", ".join(service.name for service in task.driver.spec.services)
    return [f"start {names} unless they run (run only)"] if names else []


def steps_before_unload(task: Task) -> list[str]:
    """Return what is run and stopped before the first module is unloaded."""
    spec = task.driver.spec
    names = ", ".join(service.name for service in reversed(spec.services))
    return [*hook_steps(spec.hooks.before_unload), *([f"stop {names}"] if names else [])]
