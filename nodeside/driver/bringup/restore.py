"""Bring back the in-tree drivers that were removed for a driver, once that is removed itself.

An in-tree module that another loaded driver conflicts with stays away, and devices that such a
driver has stay with it. They remain in the record of the driver that they were cleared for: the
removal of the other one brings them back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from nodeside import log
from nodeside.driver.bringup.neighbours import loaded_records
from nodeside.driver.kernel.conflicts import (
    Restored,
    failed_restore_result,
    foresee_removed,
    named_in,
    plan_restore,
    restore_at_removal,
)
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.kernel.sequence import problem_in_words
from nodeside.driver.ladder.task import Task
from nodeside.driver.node.loaded_record import Cleared, LoadedRecord
from nodeside.driver.node.node_lock import is_locked
from nodeside.driver.node.run_directory import hold_lock, read_loaded, write_cleared
from nodeside.protocol.module_names import kernel_name
from nodeside.spec.model import Restore
from nodeside.system.pci import pci_devices

# Seconds to wait for another driver that is removed at the same time: it announces that for five.
_LOCK_TIMEOUT = 8.0


def find_device_addresses(names: Iterable[str], loader: Loader) -> frozenset[str]:
    """Return the addresses of these modules' PCI devices; none if the kernel does not tell."""
    try:
        devices = foresee_removed([kernel_name(name) for name in names], loader).unbound
    except Exception as exc:
        log.warning("the PCI devices cannot be read", why=problem_in_words(exc))
        return frozenset()
    return frozenset(item.address for item in devices)


def find_kept_away(task: Task, cleared: Cleared, loader: Loader) -> Cleared:
    """Return what must not come back, since other drivers of nodeside are loaded.

    Nothing if the kernel does not tell.
    """
    try:
        others, rows = _other_drivers(task, loader), loader.modules.rows()
        devices = pci_devices(task.host)
        return plan_restore(cleared, task.driver.spec, rows, devices, others=others).kept
    except Exception as exc:
        log.warning("the modules of other drivers cannot be read", why=problem_in_words(exc))
        return Cleared()


def restore_steps(
    task: Task, record: LoadedRecord | None, loader: Loader, leaving: Collection[str]
) -> tuple[str, ...]:
    """Return what `restore_removed` would do once the modules `leaving` are unloaded."""
    spec = task.driver.spec
    if spec.conflicts.restore is Restore.NEVER:
        return ()
    freed, others = find_device_addresses(leaving, loader), _other_drivers(task, loader)
    rows, devices = loader.modules.rows(), pci_devices(task.host)
    own = record.cleared if record is not None else Cleared()
    plans = [
        plan_restore(own, spec, rows, devices, leaving=leaving, others=others),
        *(
            plan_restore(part, spec, rows, devices, leaving=leaving, others=others, freed=freed)
            for part in _left_by_others(task, freed, loader).values()
        ),
    ]
    return tuple(dict.fromkeys(words for plan in plans for words in plan.steps_in_words))


def restore_removed(
    task: Task, record: LoadedRecord | None, loader: Loader, freed: Collection[str]
) -> Restored:
    """Bring back what was cleared for a driver that is unloaded, and what others have left to it.

    `freed` are the addresses of the devices that the driver had. Failures are returned.
    """
    spec = task.driver.spec
    if spec.conflicts.restore is Restore.NEVER:
        return Restored()
    cleared = record.cleared if record is not None else Cleared()
    try:
        others = _other_drivers(task, loader)
        left = _left_by_others(task, freed, loader)
    except Exception as exc:
        return failed_restore_result(exc, cleared, spec)
    done = restore_at_removal(cleared, spec, loader, others=others)
    every = [done]
    for name, part in left.items():
        every.append(_restore_for(name, part, task, loader, freed=freed))
    return Restored(
        tuple(name for each in every for name in each.modules),
        tuple(address for each in every for address in each.devices),
        tuple(words for each in every for words in each.left),
        tuple(words for each in every for words in each.problems),
        done.kept,
    )


def _restore_for(
    name: str,
    part: Cleared,
    task: Task,
    loader: Loader,
    *,
    freed: Collection[str],
) -> Restored:
    """Bring back the part that another driver has left to this one, and correct its record."""
    spec, host = task.driver.spec, task.host
    restored = Restored()
    try:
        with hold_lock(host, name, timeout=_LOCK_TIMEOUT, clock=loader.clock):
            record = read_loaded(host, name, task.boot_id)
            if record is None or _is_loaded(record, loader):
                return Restored()
            part = named_in(record.cleared, spec, freed)
            others = _other_drivers(task, loader)  # again: one may have been loaded meanwhile
            others.pop(name, None)  # its lock is ours
            restored = restore_at_removal(part, spec, loader, others=others, freed=freed)
            left = record.cleared.without(part.without(restored.kept))
            write_cleared(host, name, record, left)
            return restored
    except Exception as exc:
        failed = failed_restore_result(exc, part, spec, freed)
        return replace(restored, problems=(*restored.problems, *failed.problems))


def _other_drivers(task: Task, loader: Loader) -> dict[str, LoadedRecord]:
    """Return the records of the other drivers that are loaded, or are being loaded."""
    return {
        name: record
        for name, record in loaded_records(task.host, task.boot_id).items()
        if name != task.name
        and record.modules
        and (_is_loaded(record, loader) or is_locked(task.host, name))
    }


def _is_loaded(record: LoadedRecord, loader: Loader) -> bool:
    """Return whether a module of a record is in the kernel, by its build-id if both are known."""
    for module in record.modules:
        state = loader.modules.state(module.name)
        if state is not None:
            is_comparable = bool(module.build_id and state.build_id)
            if not is_comparable or module.build_id == state.build_id:
                return True
    return False


def _left_by_others(task: Task, freed: Collection[str], loader: Loader) -> dict[str, Cleared]:
    """Return what other drivers have left to this one, by their names.

    Also that of a driver which still has a pod: it may never load. If it does, it clears the way
    again. But one that has only left for another driver to be replaced is about to. A driver whose
    modules another one took over has left them in its record; nobody unloads it any more.
    """

    def is_left(name: str, record: LoadedRecord) -> bool:
        has_pod = is_locked(task.host, f"{name}.pod")
        if not record.modules:
            return not (has_pod and record.awaits and task.name not in record.awaits)
        is_at_work = has_pod or record.hook or is_locked(task.host, name)
        return not is_at_work and not _is_loaded(record, loader)

    parts = {
        name: named_in(record.cleared, task.driver.spec, freed)
        for name, record in loaded_records(task.host, task.boot_id).items()
        if name != task.name and is_left(name, record)
    }
    return {name: part for name, part in parts.items() if not part.is_empty}
