"""Drivers that come after one another on a node: `spec.after`.

A driver is loaded once its *predecessors*, the drivers in `after`, are ready in this boot. Before a
driver's modules are unloaded, its *followers* leave: the drivers that are loaded and come after it.
Their own pods unload them, and load them again when it is ready.

    /run/nodeside/<driver>/ready                  it may be followed
    /run/nodeside-locks/<driver>.loaded.json      `after`: whom it follows
    /run/nodeside-locks/<driver>.leaving.json     its followers have to leave now

Neither of two drivers can miss the other: one that loads writes its record and then looks whether a
predecessor is leaving; one that leaves says so and then looks for such records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nodeside import log
from nodeside.driver.bringup.attempt import Attempt
from nodeside.driver.handoff.result import StoppedWaiting
from nodeside.driver.kernel.errors import InUse, RebootRequired
from nodeside.driver.kernel.loader import Loader, in_use_error
from nodeside.driver.kernel.unload import (
    Blocked,
    ModulesToUnload,
    Obstacle,
    obstacle_error,
    plan_unload,
)
from nodeside.driver.ladder.exported_symbols import symbols_of_loaded
from nodeside.driver.ladder.task import Task
from nodeside.driver.node.holders import Holding, who_holds
from nodeside.driver.node.loaded_record import LoadedRecord
from nodeside.driver.node.node_lock import is_locked, make_directory
from nodeside.driver.node.run_directory import read_loaded
from nodeside.driver.services.processes import is_of_a_service
from nodeside.errors import ExitCode, NodesideError, NoSpace
from nodeside.protocol.node_records import read_record, remove_record, write_record
from nodeside.protocol.node_status import WAITS_FOR_DRIVER
from nodeside.protocol.ready_file import is_ready, ready_path
from nodeside.spec.patterns import DRIVER_NAME
from nodeside.system.host import Host
from nodeside.values import frozen

_PATIENCE = 90.0  # seconds for followers to stop their services and to unload
_POD_RESTART = 20.0  # seconds that a container takes to start again
_PAUSE = 0.1
_LOADED = ".loaded.json"


class WaitsForDriver(NodesideError):
    """A driver that this one comes after is not ready on this node."""

    exit_code = ExitCode.WAITS_FOR_DRIVER
    reason = WAITS_FOR_DRIVER
    retryable = True


@frozen
class LeavingRecord:
    """`<driver>.leaving.json`: a driver is about to unload its modules."""

    driver: str
    boot_id: str


def leaving_path(host: Host, driver: str) -> Path:
    return host.locks / f"{driver}.leaving.json"


# --- the side of a follower -------------------------------------------------------------------


def paths_of_predecessors(host: Host, after: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the files that tell when predecessors become ready, or leave."""
    return tuple(path(host, name) for name in after for path in (ready_path, leaving_path))


def leaving_predecessors(task: Task) -> tuple[str, ...]:
    """Return the predecessors before which this driver has to leave now."""
    return tuple(name for name in task.driver.spec.after if _is_leaving(task.host, name, task))


def require_predecessors(task: Task) -> None:
    """Raise WaitsForDriver unless all predecessors are ready and stay."""
    missing = [
        name
        for name in task.driver.spec.after
        if _is_leaving(task.host, name, task) or not is_ready(task.host, name, task.boot_id)
    ]
    if task.name in missing:
        raise WaitsForDriver(
            f"{task.name} comes after itself, so it is never loaded",
            hint=f"remove it from spec.after in {task.config.driver_file}",
        )
    stale = task.config.after is None and (
        symbols_of_loaded(task.host, task.driver.spec.after, task.boot_id) != task.symbols
    )
    if not missing and stale:
        raise WaitsForDriver(
            "a driver that this one comes after was replaced meanwhile; the next attempt reads its "
            "symbols anew"
        )
    if missing:
        names = ", ".join(missing)
        raise WaitsForDriver(
            f"waits until {names} {'is' if len(missing) == 1 else 'are'} ready on this node",
            hint=f"see why: nodeside-cluster explain {missing[0]} {task.config.node}"
            if task.config.revision  # the controller made this pod
            else f"first: nodeside driver run --once -f FILE, with the driver.yaml of {missing[0]}",
        )


def _is_leaving(host: Host, driver: str, task: Task) -> bool:
    return read_record(LeavingRecord, leaving_path(host, driver), task.boot_id) is not None


# --- the side of a predecessor ----------------------------------------------------------------


def clear_leaving(task: Task) -> None:
    """Remove the record that a driver leaves: a process that was killed may have left it behind."""
    remove_record(leaving_path(task.host, task.name))


@contextmanager
def without_followers(attempt: Attempt, what: ModulesToUnload) -> Iterator[None]:
    """Let the followers of a driver leave, and keep them away while the block runs.

    Raises InUse if somebody holds a module of theirs, or of `what`, and RebootRequired if only a
    reboot removes them: then nobody has left. Raises StoppedWaiting.
    """
    task = attempt.task
    host, boot_id = task.host, task.boot_id
    clear_leaving(task)
    if not make_directory(host.locks):  # not mounted in the pods of an older controller
        yield
        return
    followers = _all_after(task.name, loaded_records(host, boot_id))
    if followers:
        _refuse_if_they_stay(attempt, followers)
        _refuse_if_held(attempt, what, followers)
    try:
        write_record(leaving_path(host, task.name), LeavingRecord(task.name, boot_id))
    except NoSpace as error:
        if followers:
            raise
        log.warning("cannot tell other drivers that this one leaves", why=error)
    try:
        _await_followers(attempt)
        yield
    finally:
        remove_record(leaving_path(host, task.name))


def _await_followers(attempt: Attempt) -> None:
    task, clock = attempt.task, attempt.loader.clock
    until, logged = clock.now() + _PATIENCE, False
    seen = clock.now()  # when all of them had a pod
    while names := _present_followers(task, attempt.loader):
        words = ", ".join(names)
        if not logged:
            log.fact("waiting until the drivers that come after it have left", drivers=words)
            logged = True
        if attempt.listener.stopping():
            raise StoppedWaiting(f"stopped while {words} had not left")
        idle = [name for name in names if not _has_a_pod(task.host, name)]
        seen = seen if idle else clock.now()
        if clock.now() >= min(until, seen + _POD_RESTART):
            why = "no pod runs it" if idle else f"waited {_PATIENCE:g} s"
            raise InUse(
                f"{words} comes after {task.name} and has not left: {why}",
                hint="first: nodeside driver unload -f FILE, with the driver.yaml of "
                f"{(idle or names)[0]}",
            )
        clock.sleep(_PAUSE)


def _present_followers(task: Task, loader: Loader) -> list[str]:
    """Return the followers that are loaded, or are being loaded."""
    rows = loader.modules.rows()
    return [
        name
        for name, record in loaded_records(task.host, task.boot_id).items()
        if task.name in record.after
        and (
            any(module.name in rows for module in record.modules)
            or is_locked(task.host, name)
            or (not record.modules and is_locked(task.host, f"{name}.pod"))
        )
    ]


def _has_a_pod(host: Host, driver: str) -> bool:
    """Return whether some process can unload a driver: its pod, or one that works on it now."""
    return is_locked(host, f"{driver}.pod") or is_locked(host, driver)


def loaded_records(host: Host, boot_id: str) -> Mapping[str, LoadedRecord]:
    """Return the records of this boot by the names of their drivers."""
    files = sorted(path.name for path in host.locks.glob(f"*{_LOADED}"))
    names = [name for file in files if DRIVER_NAME.fits(name := file.removesuffix(_LOADED))]
    records = {name: read_loaded(host, name, boot_id) for name in names}
    return {name: record for name, record in records.items() if record is not None}


def _all_after(driver: str, records: Mapping[str, LoadedRecord]) -> dict[str, LoadedRecord]:
    """Return the followers of a driver, and theirs."""
    found: dict[str, LoadedRecord] = {}
    names = [driver]
    while names:
        name = names.pop()
        for follower, record in records.items():
            if name in record.after and follower not in found and follower != driver:
                found[follower] = record
                names.append(follower)
    return found


def _refuse_if_they_stay(attempt: Attempt, followers: Mapping[str, LoadedRecord]) -> None:
    """Raise RebootRequired if the driver.yaml of a loaded follower lets only a reboot remove it."""
    task, rows = attempt.task, attempt.loader.modules.rows()
    for name, record in followers.items():
        if record.stays and any(module.name in rows for module in record.modules):
            raise RebootRequired(
                f"{name} comes after {task.name}, and its driver.yaml says that only a reboot "
                "removes it",
                hint="reboot the node, or change unload.policy and upgrade of that driver",
            )


def _refuse_if_held(
    attempt: Attempt, what: ModulesToUnload, followers: Mapping[str, LoadedRecord]
) -> None:
    """Raise what an unload would, if something else than a service holds one of the modules."""
    task, loader = attempt.task, attempt.loader
    theirs = [module.name for each in followers.values() for module in each.modules]
    devices = {device for each in followers.values() for device in each.devices}
    every = ModulesToUnload((*theirs, *what.names), what.devices | devices)
    drivers = (task.name, *followers)
    for item in plan_unload(every, loader.modules.rows()).blocked:
        if item.obstacle is not Obstacle.HELD:
            raise obstacle_error(item, loader, every.devices)
        others = held_by_others(task.host, item, every.devices, drivers)
        if others is not None:
            raise in_use_error(others)


def held_by_others(
    host: Host, item: Blocked, devices: frozenset[str], drivers: Collection[str]
) -> Holding | None:
    """Return what holds a module besides services of these drivers; None if nothing else does."""
    holding = who_holds(item.module, host, devices)
    others = tuple(
        process
        for process in holding.processes
        if not any(is_of_a_service(host, process.pid, driver) for driver in drivers)
    )
    only_ours = len(others) < len(holding.processes) and not (
        others or holding.mounts or holding.disks or holding.unseen
    )
    if item.obstacle is Obstacle.HELD and only_ours:
        return None
    return replace(holding, processes=others)
