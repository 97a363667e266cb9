"""Unload a driver's modules, with all that belongs to it: hooks, services, modules, hooks.

Drivers that come after it leave before all that, see `neighbours.py`.

Our own services hold the devices, so they do not count as holders: they are stopped. Nothing is
stopped while somebody else holds a module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from nodeside import log
from nodeside.driver.bringup.attempt import Attempt
from nodeside.driver.bringup.hooks import HookFailed, record_hook, repetition_message, run_hooks
from nodeside.driver.bringup.neighbours import held_by_others, without_followers
from nodeside.driver.kernel.loader import in_use_error
from nodeside.driver.kernel.unload import (
    ModulesToUnload,
    Obstacle,
    obstacle_error,
    plan_settled_unload,
    plan_unload,
    unload_modules,
)
from nodeside.driver.ladder.task import Task
from nodeside.driver.node.loaded_record import HooksRun, LoadedRecord
from nodeside.driver.node.run_directory import write_loaded
from nodeside.errors import NodesideError


def unload_driver(
    attempt: Attempt,
    what: ModulesToUnload,
    record: LoadedRecord | None,
    *,
    begin: Callable[[], None] = lambda: None,
) -> tuple[str, ...]:
    """Unload modules. Returns the removed names in order; see `unload_modules` for what it raises.

    The drivers that come after this one leave first. Without services of this process, those of
    another process are stopped. Services of this process start again if no module could be
    unloaded. Raises HookFailed if a beforeUnload hook fails, and the modules stay; a failed
    afterUnload hook is logged. Raises StoppedWaiting.
    """
    with without_followers(attempt, what):
        return _unload_driver(attempt, what, record, begin=begin)


def _unload_driver(
    attempt: Attempt,
    what: ModulesToUnload,
    record: LoadedRecord | None,
    *,
    begin: Callable[[], None],
) -> tuple[str, ...]:
    task, loader, services = attempt.task, attempt.loader, attempt.services
    spec = task.driver.spec
    has_services = spec.services or (services is not None and services.pids)  # also former ones
    if not has_services and spec.hooks.before_unload == spec.hooks.after_unload == ():
        return unload_modules(what, loader, begin=begin)
    _refuse_if_held(attempt, what)
    begin()
    if not plan_unload(what, loader.modules.rows()).order:
        _stop_services(attempt)
        finish_unload(attempt, record, left=())
        return ()
    record = _run_before_unload_hooks(task, record)
    _stop_services(attempt)
    if spec.hooks.after_unload:
        record_hook(task.host, record, "hooks.afterUnload[0]")
    try:
        removed = unload_modules(what, loader)
    except NodesideError as error:
        if spec.hooks.after_unload:
            record_hook(task.host, record, "")
        if services is not None and not getattr(error, "removed", ()):
            services.note_vain_stop()
            services.start_again()
        raise
    _run_after_unload_hooks(task, record, only_recorded=False)
    return removed


def finish_unload(attempt: Attempt, record: LoadedRecord | None, *, left: Collection[str]) -> None:
    """Run the afterUnload hooks if a process was killed between the unload and their end.

    `left` are the modules of this driver that are loaded.
    """
    task = attempt.task
    if left or record is None or not record.is_within("afterUnload"):
        return
    if task.driver.spec.hooks.after_unload:
        attempt.journal.add_note(repetition_message(record, "afterUnload"))
    _run_after_unload_hooks(task, record, only_recorded=True)


def _run_after_unload_hooks(
    task: Task, record: LoadedRecord | None, *, only_recorded: bool
) -> None:
    """Run the afterUnload hooks. A failed one is logged."""
    hooks = task.driver.spec.hooks.after_unload
    try:
        run_hooks(task.host, record, "afterUnload", hooks, only_recorded=only_recorded)
    except HookFailed as error:
        log.warning(str(error), driver=task.name, reason=error.reason, hint=error.hint)
    else:
        if hooks:
            record_hook(task.host, record, "")


def _run_before_unload_hooks(task: Task, record: LoadedRecord | None) -> LoadedRecord | None:
    """Run the beforeUnload hooks, unless they have run for an unload that then failed.

    Return the record as it is now.
    """
    hooks = task.driver.spec.hooks.before_unload
    if not hooks or (record is not None and record.hooks is HooksRun.BEFORE_UNLOAD):
        return record
    if record is not None and record.is_within("beforeUnload"):
        log.fact(repetition_message(record, "beforeUnload"), driver=task.name)
    run_hooks(task.host, record, "beforeUnload", hooks, only_recorded=True)
    if record is None:
        return None
    done = replace(record, hooks=HooksRun.BEFORE_UNLOAD, hook="")
    write_loaded(task.host, done)
    return done


def _stop_services(attempt: Attempt) -> None:
    task, services = attempt.task, attempt.services
    if services is not None:
        services.stop()
    elif task.driver.spec.services:
        from nodeside.driver.services.services import stop_all

        stop_all(task.name, task.driver.spec.services)


def _refuse_if_held(attempt: Attempt, what: ModulesToUnload) -> None:
    """Raise what `unload_modules` would, if something else than our services is in the way.

    A reference that no process, mount or disk explains is found out only by an unload that fails:
    then the services are not stopped again for some time.
    """
    task, loader, services = attempt.task, attempt.loader, attempt.services
    blocked = plan_unload(what, loader.modules.rows()).blocked
    if blocked and services is not None and not services.may_stop_for_unload:
        raise obstacle_error(blocked[0], loader, what.devices)
    if all(held_by_others(task.host, item, what.devices, (task.name,)) is None for item in blocked):
        return
    for item in plan_settled_unload(
        what, loader
    ).blocked:  # what is in the way may pass in a moment
        others = held_by_others(task.host, item, what.devices, (task.name,))
        if others is not None and item.obstacle is Obstacle.HELD:
            raise in_use_error(others)
        if others is not None:
            raise obstacle_error(item, loader, what.devices)
