"""Unload a driver's modules: at once, or as soon as nothing holds them.

A person uses the first form. The second form runs in a pod that the controller starts on a node
when a Driver is deleted, or the node leaves it. That pod keeps the driver's lock while it waits, so
that a driver pod that is still running loads nothing again. It reports the holders of the modules
whenever they change, and reports the result to the cluster before it releases the lock. SIGTERM
ends it between two tries. Nothing is ever unloaded by force, and no module that nodeside did not
load: it may be the kernel's own, and the node's network may depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from nodeside import log
from nodeside.driver.agent.watch import Wakeups, Why
from nodeside.driver.announce.announcer import Announcer, make_announcer
from nodeside.driver.bringup.attempt import Attempt
from nodeside.driver.bringup.journal import Journal
from nodeside.driver.bringup.observe import loaded_by_nodeside
from nodeside.driver.bringup.restore import find_device_addresses, restore_removed, restore_steps
from nodeside.driver.bringup.teardown import unload_driver
from nodeside.driver.commands.outcome import CommandOutput, dry_run_outcome
from nodeside.driver.commands.steps import hook_steps, steps_before_unload
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.kernel.conflicts import Restored
from nodeside.driver.kernel.errors import CannotUnload
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.kernel.unload import Obstacle, modules_to_unload, plan_unload
from nodeside.driver.ladder.exported_symbols import clear_symbols
from nodeside.driver.ladder.task import Task
from nodeside.driver.node import run_directory
from nodeside.driver.node.load_mark import clear_mark
from nodeside.driver.node.loaded_record import LoadedRecord
from nodeside.errors import ExitCode, Locked, NodesideError
from nodeside.protocol.node_status import NOT_RESTORED, UNLOADED, State
from nodeside.system.clock import Clock
from nodeside.values import frozen

_LOCK_TIMEOUT = 10.0  # seconds; a person waits less than a pod
_LOCK_LOOK = 10.0  # seconds, after which a pod logs the holder of the lock and keeps waiting
_FIRST_LOOK = 1.0  # seconds until the next try, doubled up to _LONGEST_LOOK
_LONGEST_LOOK = 10.0
_ANNOUNCE_SECONDS = 5.0  # seconds to report the result to the cluster


class UnloadStopped(NodesideError):
    """A stop request that came before the modules could be unloaded; they stay as they are."""

    exit_code = ExitCode.INTERRUPTED
    reason = "Stopped"
    retryable = True


@frozen
class Unloaded:
    """The modules that were removed, and what was brought back for them."""

    removed: tuple[str, ...]
    restored: Restored

    @property
    def reason(self) -> str:
        return NOT_RESTORED if self.restored.problems else UNLOADED

    @property
    def message(self) -> str:
        failed = (f"could not be brought back: {each}" for each in self.restored.problems)
        return "; ".join(("unloaded", *self.restored.left, *failed))


def unload(task: Task) -> CommandOutput:
    """Unload this driver's modules. Obstacles are reported before anything is touched.

    From the start of the unload the driver counts as not ready, whatever the result, and this is
    announced to the cluster.
    """
    with make_announcer(task.host) as announcer:
        journal = Journal(task, announcer.report_state)
        with run_directory.hold_lock(task.host, task.name, timeout=_LOCK_TIMEOUT):
            # Announced under the lock: its next holder may load the driver again at once.
            try:
                done = _unload_modules(Attempt(task, journal, Loader(task.host)))
                journal.announce_state(State.WAITING, done.message, reason=done.reason)
            except NodesideError as error:
                journal.report_failure(error, announce=journal.announced is not None)
                raise
            finally:
                announcer.flush(_ANNOUNCE_SECONDS)
    return _unload_outcome(task, done)


def unload_when_idle(task: Task) -> CommandOutput:
    """Unload, but wait without a deadline until the lock and the modules are released.

    Raises RebootRequired if waiting cannot help, UnloadStopped after SIGTERM or SIGINT.
    """
    with Wakeups((), uevents=lambda: None) as watch, make_announcer(task.host) as announcer:
        journal = Journal(task, announcer.report_state)
        return _UnloadWhenIdle(task, journal, announcer, watch).unload()


def would_unload(task: Task) -> CommandOutput:
    """Return what would be unloaded, or what blocks it."""
    record = run_directory.read_loaded(task.host, task.name, task.boot_id)
    loader = Loader(task.host)
    ours = loaded_by_nodeside(task, record, loader)
    decided = plan_unload(modules_to_unload((), record, ours), loader.modules.rows())
    steps = [f"unload {name}" for name in decided.order]
    if steps:
        after = hook_steps(task.driver.spec.hooks.after_unload)
        steps = [*steps_before_unload(task), *steps, *after]
    steps += restore_steps(task, record, loader, decided.order)
    only_held = all(item.obstacle is Obstacle.HELD for item in decided.blocked)
    if decided.blocked and not (only_held and task.driver.spec.services):
        steps = [f"fail: {item.module} is {item.obstacle.value}" for item in decided.blocked]
    return dry_run_outcome(
        task, *(steps or ["unload nothing: nodeside has loaded none of its modules"])
    )


@frozen
class _UnloadWhenIdle:
    """One wait until a driver is unloaded."""

    task: Task
    journal: Journal
    announcer: Announcer
    watch: Wakeups

    def unload(self) -> CommandOutput:
        """Unload, and report the result before the next lock holder can report newer state."""
        with self._hold_lock():
            try:
                done = self._unload_until_done()
                self.journal.announce_state(State.WAITING, done.message, reason=done.reason)
            except UnloadStopped:
                raise
            except NodesideError as error:
                self.journal.report_failure(error)
                raise
            finally:
                self.announcer.flush(_ANNOUNCE_SECONDS)
        return _unload_outcome(self.task, done)

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the driver's lock, once its current holder has released it.

        Until then nothing is announced: the current holder reports the driver's state.
        """
        task, clock = self.task, Clock(sleep=self._sleep_unless_stopped)
        with ExitStack() as stack:
            while True:
                lock = run_directory.hold_lock(
                    task.host, task.name, timeout=_LOCK_LOOK, clock=clock
                )
                try:
                    stack.enter_context(lock)
                    break
                except Locked as error:
                    log.warning(str(error), driver=task.name, reason=error.reason)
            yield

    def _unload_until_done(self) -> Unloaded:
        listener = Listener(stopping=lambda: self.watch.stopping is not None)
        attempt = Attempt(self.task, self.journal, Loader(self.task.host), listener)
        pause = _FIRST_LOOK
        removed: tuple[str, ...] = ()
        self.journal.announce_state(State.UNLOADING)
        while True:
            try:
                done = _unload_modules(attempt)
                return replace(done, removed=removed + done.removed)
            except NodesideError as error:
                if not error.retryable:
                    raise
                if isinstance(error, CannotUnload):
                    removed += error.removed
                self._report_obstacle(error)
            if self.watch.wait_for_reason(pause).why is Why.STOP:
                raise self._stopped_error()
            pause = min(pause * 2, _LONGEST_LOOK)

    def _report_obstacle(self, error: NodesideError) -> None:
        announced = self.journal.announced
        if announced is None or announced.message != str(error):
            log.warning(str(error), driver=self.task.name, reason=error.reason, hint=error.hint)
            self.journal.announce_obstacle(error)

    def _sleep_unless_stopped(self, seconds: float) -> None:
        if self.watch.stopping is not None:
            raise self._stopped_error()
        time.sleep(seconds)

    def _stopped_error(self) -> UnloadStopped:
        name = self.watch.stopping.name if self.watch.stopping else "a signal"
        announced = self.journal.announced
        why = f"; until then: {announced.message}" if announced and announced.message else ""
        return UnloadStopped(f"{name} came before driver {self.task.name} was unloaded{why}")


def _unload_modules(attempt: Attempt) -> Unloaded:
    task, loader = attempt.task, attempt.loader
    record = run_directory.read_loaded(task.host, task.name, task.boot_id)
    what = modules_to_unload((), record, loaded_by_nodeside(task, record, loader))
    begin = partial(attempt.journal.announce_state, State.UNLOADING)
    freed = find_device_addresses(what.names, loader)
    removed = unload_driver(attempt, what, record, begin=begin)
    rows = loader.modules.rows()
    _forget_modules(task, record)
    try:
        if task.driver.spec.firmware is not None:
            from nodeside.driver.kernel.firmware import FirmwareDirectory

            FirmwareDirectory(task.host).remove_files(task.name)
    finally:  # after the firmware, which the in-tree driver would find first
        restored = _restore_conflicts(task, record, loader, freed)
    run_directory.write_cleared(task.host, task.name, record, restored.kept)
    if record is not None and not restored.kept.is_empty:
        # A driver that was unloaded meanwhile did not find in the record what this one has kept.
        again = replace(record, cleared=restored.kept)
        late = _restore_conflicts(task, again, loader, ())
        run_directory.write_cleared(task.host, task.name, again, late.kept)
        restored = restored.followed_by(late)
    clear_symbols(task.host, task.name)
    clear_mark(task.host, task.name)
    if (task.host.userspace / task.name).is_dir():
        from nodeside.driver.userspace.versions import Versions

        Versions(task.host, task.name).remove_all()
    for name in (name for name in task.wanted.names if name in rows):
        log.warning(f"{name} stays: nodeside did not load it", hint=f"to unload it: rmmod {name}")
    return Unloaded(removed, restored)


def _forget_modules(task: Task, record: LoadedRecord | None) -> None:
    """Record that only what was cleared is left of the driver.

    An in-tree module of the same name that comes back is not ours, should a later step fail. Of two
    drivers that are unloaded at the same time, the later one brings back what both conflict with.
    """
    if record is None:
        return
    try:
        run_directory.write_loaded(task.host, record.of_cleared_only)
    except NodesideError as error:  # a full disk, perhaps
        log.warning("the record of the loaded modules could not be corrected", why=error)


def _restore_conflicts(
    task: Task, record: LoadedRecord | None, loader: Loader, freed: Collection[str]
) -> Restored:
    """Bring back the in-tree drivers that were removed for this one. A failure is a warning."""
    restored = restore_removed(task, record, loader, freed)
    if back := (*restored.modules, *restored.devices):
        log.fact("brought back", driver=task.name, restored=", ".join(back))
    for left in restored.left:
        log.warning(left, driver=task.name)
    for problem in restored.problems:
        log.warning(f"could not be brought back: {problem}", driver=task.name)
    return restored


def _unload_outcome(task: Task, done: Unloaded) -> CommandOutput:
    words = ", ".join(done.removed) or "nothing: none of its modules was loaded by nodeside"
    back = [*done.restored.modules, *done.restored.devices]
    not_back = [*done.restored.left, *done.restored.problems]
    document: dict[str, object] = {
        "driver": task.name,
        "removed": list(done.removed),
        "restored": back,
        "notRestored": not_back,
    }
    rows = [("unloaded", words)]
    if back:
        rows.append(("restored", ", ".join(back)))
    rows += [("not restored", words) for words in not_back]
    return CommandOutput(document, rows)
