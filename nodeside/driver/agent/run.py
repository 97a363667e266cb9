"""`nodeside driver run`: the main process of the driver container, as one attempt or as a loop.

One attempt brings the driver up, announces the result, and exits with its exit code. The loop does
the same and starts the services of the driver, then waits for a reason to look again: a kernel
event, a service that has ended, a changed driver.yaml, a slow poll.
A failed driver never ends the process. The process stays unready, reports why, retries what is
retryable, and wakes when its inputs change. A bug in nodeside does not end it either: it is
reported like any other failure, with its traceback in the log. SIGTERM ends the process and the
services of the driver, and leaves the modules loaded.

The loop also holds the pod lock of its driver from its first action to its end, so it is the only
such pod on the node. If a new revision replaces an old one, the new pod waits until the old pod has
ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path

from nodeside import log
from nodeside.driver.agent.resolution import LastRead, resolve_or_announce
from nodeside.driver.bringup.attempt import Attempt
from nodeside.driver.bringup.bringup import bring_up, report_if_loaded
from nodeside.driver.bringup.earlier_attempts import EarlierAttempts
from nodeside.driver.bringup.journal import Journal, Report
from nodeside.driver.bringup.neighbours import paths_of_predecessors
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.handoff.result import StoppedWaiting
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.ladder.task import Config, Task, read_driver
from nodeside.driver.node.load_mark import clear_mark
from nodeside.driver.node.run_directory import hold_lock, hold_pod_lock
from nodeside.driver.services.services import ServiceFailed, Services
from nodeside.errors import Bug, Locked, NodesideError, SystemRefused
from nodeside.protocol.node_status import NodeDriverStatus, State
from nodeside.protocol.ready_file import clear_ready, ready_path
from nodeside.system import process
from nodeside.system.clock import Clock
from nodeside.system.host import Host

Announce = Callable[[NodeDriverStatus], None]

_LOCK_TIMEOUT = 60.0  # seconds; another holder of the lock is a person or the previous pod
_FIRST_RETRY = 5.0  # seconds, doubled up to _LONGEST_RETRY
_LONGEST_RETRY = 300.0
_UEVENT_QUIET = 2.0  # seconds after a successful attempt during which uevents are deferred


class _Result(Enum):
    """The result of one attempt."""

    READY = "ready"
    RETRYABLE = "retryable"
    SERVICE_FAILED = "service failed"  # retried when the service may start again
    FAILED = "failed"  # until something changes


class KernelChanged(SystemRefused):
    """A pod that was made for a kernel other than the running one; it must do nothing."""

    reason = "KernelChanged"


@dataclass
class PodLock:
    """The lock of the only pod of a driver on the node. Taken once, and released by `stack`."""

    stack: ExitStack
    taken: bool = False

    def take(self, task: Task, clock: Clock) -> None:
        """Take the lock. Raises Locked, which names the pod that still holds it."""
        if self.taken:
            return
        lock = hold_pod_lock(task.host, task.name, timeout=_LOCK_TIMEOUT, clock=clock)
        self.stack.enter_context(lock)
        self.taken = True


@contextmanager
def stop_services_at_exit(services: Services, host: Host) -> Iterator[None]:
    """Stop the services of a driver, which is not ready without them."""
    try:
        yield
    finally:
        if services.pids:
            with suppress(NodesideError):
                clear_ready(host, services.driver)
        services.stop()


@dataclass
class DriverLoop:
    """Runs one driver on one node, once or in a loop.

    `expected_kernel` is the release this pod was made for. `loader` loads the modules; None means
    by system calls. Without a `pod_lock` this is not a pod, and the lock of a single attempt is
    enough. `earlier` is what earlier attempts found. Without `services` none is started.
    """

    config: Config
    listener: Listener
    announce: Announce
    expected_kernel: str = ""
    loader: Loader | None = None
    last_read: LastRead = field(default_factory=LastRead, repr=False)
    pod_lock: PodLock | None = None
    earlier: EarlierAttempts = field(default_factory=EarlierAttempts, repr=False)
    services: Services | None = field(default=None, repr=False)

    def run_once(self) -> tuple[Journal, Report]:
        """Bring the driver up. Expected failures are in the report.

        Raises NodesideError only if no task can be resolved, as for an invalid driver.yaml. That
        failure is announced too.
        """
        task = resolve_or_announce(
            self.config, self.announce, self.last_read, expected_kernel=self.expected_kernel
        )
        journal = Journal(task, self.announce, services=self.services)
        listener = replace(
            self.listener, on_sidecar=partial(journal.announce_state, State.BUILDING)
        )
        loader = self.loader or Loader(task.host)
        attempt = Attempt(task, journal, loader, listener, self.services, self.earlier)
        try:
            self._check_kernel(task)
            if self.pod_lock is not None:
                self.pod_lock.take(task, self._stoppable_clock())
            with hold_lock(
                task.host, task.name, timeout=_LOCK_TIMEOUT, clock=self._stoppable_clock()
            ):
                try:
                    return journal, _bring_up(attempt)
                except NodesideError as error:  # under the lock, before its next holder announces
                    return journal, _report_failure(journal, error)
        except NodesideError as error:
            return journal, _report_failure(journal, error)

    def run_for_ever(self) -> None:
        """Keep the driver up until SIGTERM or SIGINT."""
        services = Services()
        with ExitStack() as stack:
            self.pod_lock, self.services = PodLock(stack), services
            self._run_until_stopped(services)

    def clear_load_mark(self) -> None:
        """Remove the mark of a load: this process ends, and the kernel did not die."""
        if self.last_read.name:
            clear_mark(self.config.host, self.last_read.name, boot_id=self.config.host.boot_id)

    def _run_until_stopped(self, services: Services) -> None:
        from nodeside.driver.agent.watch import Wakeups, Why

        def reap_and_find_ends() -> bool:
            if os.getpid() == 1:
                process.reap_orphans(services.pids)
            return services.find_ends()

        retry, repeat_failed = _FIRST_RETRY, True
        with (
            Wakeups(*self._inputs_to_watch(), ended=reap_and_find_ends) as watch,
            stop_services_at_exit(services, self.config.host),
        ):
            self.listener = replace(self.listener, stopping=lambda: watch.stopping is not None)
            while watch.stopping is None:
                watch.discard_events()
                self.listener = replace(self.listener, repeat_failed=repeat_failed)
                result = self._try_once()
                if os.getpid() == 1:
                    process.reap_orphans(services.pids)
                if watch.stopping is not None:
                    break
                timeout = retry if result is _Result.RETRYABLE else None
                if result is _Result.SERVICE_FAILED:
                    timeout = services.next_start()
                is_ready = result is _Result.READY
                ready = ready_path(self.config.host, self.last_read.name) if is_ready else None
                # An attempt that loads, unloads or resets something causes uevents. Those would
                # start the next attempt at once, in an endless loop.
                reason = watch.wait_for_reason(
                    timeout, calm=_UEVENT_QUIET if is_ready else retry, ready=ready
                )
                if result is _Result.READY:
                    retry = _FIRST_RETRY
                elif reason.why is not Why.POLL and result is not _Result.SERVICE_FAILED:
                    retry = min(retry * 2, _LONGEST_RETRY)
                log.detail("looking again", why=reason.why.value, detail=reason.detail)
                repeat_failed = reason.why in (Why.INPUT, Why.TIMEOUT)
                if reason.why is Why.INPUT:
                    retry = _FIRST_RETRY
                    watch.set_targets(*self._inputs_to_watch())
            self.clear_load_mark()
            name = watch.stopping.name if watch.stopping else ""
            log.fact("stopping; the modules stay loaded", signal=name)

    def _stoppable_clock(self) -> Clock:
        """Return a clock for the wait for the lock, which must not outlive a SIGTERM."""

        def sleep(seconds: float) -> None:
            if self.listener.stopping():
                raise StoppedWaiting("stopped while waiting for the lock of this driver")
            time.sleep(seconds)

        return Clock(sleep=sleep)

    def _try_once(self) -> _Result:
        """Make one attempt, and return its result."""
        try:
            _, report = self.run_once()
        except NodesideError as error:
            log.warning(str(error), reason=error.reason, hint=error.hint)
            if error.retryable:
                return _Result.RETRYABLE
            # An invalid driver.yaml: only a new one helps.
            log.fact("waiting for a change of the file", file=self.config.driver_file)
            return _Result.FAILED
        except Exception as exc:
            log.traceback(exc)
            return _Result.RETRYABLE
        if report.state is State.READY:
            return _Result.READY
        if report.reason == ServiceFailed.reason:
            return _Result.SERVICE_FAILED
        return _Result.RETRYABLE if report.retryable else _Result.FAILED

    def _inputs_to_watch(self) -> tuple[tuple[str, ...], tuple[Path, ...], tuple[Path, ...]]:
        """Return what is a reason to look again: modules, files, and files to look at often."""
        config = self.config
        files = [config.driver_file, config.policy_file, config.ca_file, config.credentials_file]
        names, often = tuple[str, ...](), tuple[Path, ...]()
        with suppress(Exception):  # an attempt reports what is wrong with it
            spec = read_driver(config).spec
            names = tuple(module.name for module in spec.modules)
            often = paths_of_predecessors(config.host, spec.after)
            signing, trust = spec.signing, spec.prebuilt.trust
            secrets = [signing.key, signing.certificate] if signing else []
            files += [config.beside_driver(path) for path in (*secrets, trust.certificate) if path]
        return names, tuple(file for file in files if file is not None), often

    def _check_kernel(self, task: Task) -> None:
        if self.expected_kernel and self.expected_kernel != task.kernel.release:
            raise KernelChanged(
                f"this pod was made for kernel {self.expected_kernel}, "
                f"the node runs {task.kernel.release}",
                hint="the controller moves the node to the DaemonSet of its kernel",
            )


def _bring_up(attempt: Attempt) -> Report:
    """Bring the driver up. After a bug, judge what is loaded: the bug says nothing about it."""
    try:
        return bring_up(attempt)
    except NodesideError:
        raise
    except Exception as exc:
        log.traceback(exc)
        bug, services = Bug(exc), attempt.services
        attempt.journal.add_note(str(bug))
        if services is not None and not services.are_ready(attempt.task.driver.spec.services):
            raise bug from exc  # without its services, the driver is not ready
        try:
            report = report_if_loaded(attempt)
        except Exception as problem:
            attempt.journal.add_note(f"the loaded modules cannot be judged: {problem}")
            report = None
        if report is None:
            raise bug from exc
        return report


def _report_failure(journal: Journal, error: NodesideError) -> Report:
    """Log a failure, and announce it unless it says nothing about the driver.

    In that case another process works on the driver, now or later, and reports its state.
    """
    log.warning(str(error), driver=journal.task.name, reason=error.reason, hint=error.hint)
    unrelated = isinstance(error, Locked | KernelChanged | StoppedWaiting)
    return journal.report_failure(error, announce=not unrelated)
