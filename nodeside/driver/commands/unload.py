"""Take a driver's modules out of the kernel: at once, or as soon as nobody holds them any more.

The first is what a person types. The second is what the pod does that the controller starts on a
node when a Driver is deleted, or the node leaves it: it keeps the lock of the driver while it
waits, so that a driver pod that still runs loads nothing again, says who holds the modules each
time that this changes, and tells the cluster what came of it before it lets the lock go. SIGTERM
ends it between two tries. Nothing is ever unloaded by force.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from nodeside import log
from nodeside.clock import Clock
from nodeside.contract import UNLOADED, State
from nodeside.driver.agent.watch import Watch, Why
from nodeside.driver.announce.announcer import Announcer, announcing
from nodeside.driver.bringup.journal import Journal
from nodeside.driver.commands.outcome import Outcome
from nodeside.driver.kernel.errors import CannotUnload
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.kernel.unload import obstacle_error, settled_plan, unload_modules
from nodeside.driver.ladder.task import Task
from nodeside.driver.node import run_directory
from nodeside.errors import ExitCode, Locked, NodesideError

_LOCK_TIMEOUT = 10.0  # seconds; a person waits less long than a pod
_LOCK_LOOK = 10.0  # seconds, after which a pod says who has the lock, and goes on waiting
_FIRST_LOOK = 1.0  # seconds until the next try, doubled up to the longest
_LONGEST_LOOK = 10.0
_TELL = 5.0  # seconds for the cluster to hear what came of it


class UnloadStopped(NodesideError):
    """We were asked to stop before the modules could go; they stay as they are."""

    exit_code = ExitCode.INTERRUPTED
    reason = "Stopped"
    retryable = True


def unload(task: Task) -> Outcome:
    """Unload what is loaded of this driver; what is in the way is said before anything is touched.

    A driver that is about to go is not ready, whatever comes of it, and the cluster is told.
    """
    with announcing(task.host) as announcer:
        journal = Journal(task, announcer.state)
        with run_directory.hold_lock(task.host, task.name, timeout=_LOCK_TIMEOUT):
            try:
                removed = _unload(task, journal, Loader(task.host))
            except NodesideError as error:
                journal.failed(error, announce=journal.told is not None)
                raise
        journal.state(State.WAITING, "unloaded", reason=UNLOADED)
    return _outcome(task, removed)


def unload_when_idle(task: Task) -> Outcome:
    """The same, but wait for whoever holds the lock or the modules, however long that takes.

    Raises RebootRequired where no waiting helps, UnloadStopped after SIGTERM or SIGINT.
    """
    with Watch((), uevents=lambda: None) as watch, announcing(task.host) as announcer:
        journal = Journal(task, announcer.state)
        return _Patience(task, journal, announcer, watch).unload()


@dataclass(frozen=True)
class _Patience:
    """One wait for a driver to be unloaded."""

    task: Task
    journal: Journal
    announcer: Announcer
    watch: Watch

    def unload(self) -> Outcome:
        """Whoever has the lock next says the newer thing, so the cluster hears ours before."""
        with self._lock():
            try:
                removed = self._until_idle()
                self.journal.state(State.WAITING, "unloaded", reason=UNLOADED)
            except UnloadStopped:
                raise
            except NodesideError as error:
                self.journal.failed(error)
                raise
            finally:
                self.announcer.flush(_TELL)
        return _outcome(self.task, removed)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Be the one actor for this driver here, once whoever is it now has ended.

        Until then nothing is announced: how the driver is, is for the other one to say.
        """
        task, clock = self.task, Clock(sleep=self._sleep)
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

    def _until_idle(self) -> tuple[str, ...]:
        loader, pause = Loader(self.task.host), _FIRST_LOOK
        removed: tuple[str, ...] = ()
        self.journal.state(State.UNLOADING)
        while True:
            try:
                return removed + _unload(self.task, self.journal, loader)
            except NodesideError as error:
                if not error.retryable:
                    raise
                if isinstance(error, CannotUnload):
                    removed += error.removed
                self._waits_for(error)
            if self.watch.wait(pause).why is Why.STOP:
                raise self._stopped()
            pause = min(pause * 2, _LONGEST_LOOK)

    def _waits_for(self, error: NodesideError) -> None:
        told = self.journal.told
        if told is None or told.message != str(error):
            log.warning(str(error), driver=self.task.name, reason=error.reason, hint=error.hint)
            self.journal.waits(error)

    def _sleep(self, seconds: float) -> None:
        if self.watch.stopping is not None:
            raise self._stopped()
        time.sleep(seconds)

    def _stopped(self) -> UnloadStopped:
        name = self.watch.stopping.name if self.watch.stopping else "a signal"
        told = self.journal.told
        why = f"; until then: {told.message}" if told and told.message else ""
        return UnloadStopped(f"{name} came before driver {self.task.name} was unloaded{why}")


def _unload(task: Task, journal: Journal, loader: Loader) -> tuple[str, ...]:
    record = run_directory.read_loaded(task.host, task.name, task.boot_id)
    ours = tuple(module.name for module in record.modules) if record else ()
    devices = frozenset(record.devices) if record else frozenset()
    names = tuple(dict.fromkeys((*reversed(task.wanted.names), *reversed(ours))))
    for item in settled_plan(names, loader, ours).blocked:
        raise obstacle_error(item, loader, devices)
    journal.state(State.UNLOADING)
    removed = unload_modules(names, loader, ours=ours, devices=devices)
    run_directory.clear_loaded(task.host, task.name)
    if task.driver.spec.firmware is not None:
        from nodeside.driver.kernel import firmware

        firmware.remove(task.name, task.host)
    return removed


def _outcome(task: Task, removed: tuple[str, ...]) -> Outcome:
    words = ", ".join(removed) or "nothing: none of its modules was loaded"
    return Outcome({"driver": task.name, "removed": list(removed)}, [("unloaded", words)])
