"""All services of a driver, kept by the process that runs it.

Nothing happens here between two looks at the driver: the end of a service is a reason to look, and
the look says so, and starts it again when it is its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nodeside import log
from nodeside.driver.handoff.result import StoppedWaiting
from nodeside.driver.services import processes
from nodeside.driver.services.service import RunningService
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.node_status import ServiceStatus
from nodeside.spec.services import Service
from nodeside.system.clock import Clock

_FIRST_PAUSE = 1.0  # seconds before a service that has ended is started again; doubled each time
_LONGEST_PAUSE = 300.0
_LONG = 600.0  # seconds that a service ran, after which its next pause is the first one again
_VAIN = 600.0  # seconds until services are stopped again for an unload that then failed
_LOOK = 0.1  # seconds between two looks at a service that starts


class ServiceFailed(NodesideError):
    """A service that has ended, or is not ready in time."""

    exit_code = ExitCode.PROGRAM_FAILED
    reason = "ServiceFailed"
    retryable = True


@dataclass
class _KeptService:
    """What is known of a service. `problem` is why it does not run, or is not ready."""

    service: Service
    process: RunningService | None = None
    starts: int = 0
    pause: float = _FIRST_PAUSE
    not_before: float = 0.0
    problem: str = ""
    is_ready: bool = False


@dataclass
class Services:
    """The services of a driver, in the order of their start."""

    clock: Clock = field(default_factory=Clock)
    driver: str = field(default="", init=False)
    _stopped: tuple[Service, ...] = field(default=(), init=False)
    _vain_until: float = field(default=0.0, init=False)
    _kept: dict[str, _KeptService] = field(default_factory=dict)

    @property
    def status(self) -> tuple[ServiceStatus, ...]:
        """Return the state of each, in the order of their start."""
        return tuple(
            ServiceStatus(name, kept.is_ready, max(0, kept.starts - 1), _not_ready_message(kept))
            for name, kept in self._kept.items()
        )

    @property
    def pids(self) -> frozenset[int]:
        """Return the processes that only their own service may reap."""
        return frozenset(kept.process.pid for kept in self._kept.values() if kept.process)

    def find_ends(self) -> bool:
        """Note which services have ended; return whether one has since the last call."""
        before = self.pids
        for kept in self._kept.values():
            process = kept.process
            if process is not None and process.has_ended:
                seconds = self.clock.now() - process.started
                words = f"ended after {seconds:.1f} s: {process.end_in_words()}"
                self._note_failure(kept, words, seconds)
        return self.pids != before

    def next_start(self) -> float:
        """Return the seconds until the first service that has failed may start again.

        Those after it wait for it in any case.
        """
        failed = (kept for kept in self._kept.values() if kept.problem and kept.process is None)
        first = next(failed, None)
        return max(0.0, first.not_before - self.clock.now()) if first else _FIRST_PAUSE

    def are_ready(self, wanted: Sequence[Service]) -> bool:
        """Return whether these services, and no others, run and are ready."""
        found = list(self._kept.values())
        return [kept.service for kept in found] == list(wanted) and all(
            kept.is_ready
            and kept.process is not None
            and not kept.process.has_ended
            and not kept.process.why_not_ready()
            for kept in found
        )

    def bring_up(
        self,
        driver: str,
        wanted: Sequence[Service],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start those that do not run, each once the one before is ready; stop what is not wanted.

        Raises ServiceFailed, StoppedWaiting, NodesideError.
        """
        self.driver = driver
        for name in [name for name, kept in self._kept.items() if kept.service not in wanted]:
            self._stop_service(name)
            del self._kept[name]
        for service in wanted:  # all of them have a row, whichever fails
            self._kept.setdefault(service.name, _KeptService(service))
        self._kept = {service.name: self._kept[service.name] for service in wanted}
        self.find_ends()
        for kept in self._kept.values():
            if kept.process is None:
                self._start_service(kept)
            self._await_ready(kept, stopping)

    def stop(self) -> None:
        """Stop all, the last one first."""
        self._stopped = tuple(kept.service for kept in self._kept.values() if kept.process)
        for name in reversed(list(self._kept)):
            self._stop_service(name)

    def start_again(self) -> None:
        """Start what the last `stop` stopped, since the modules stay. A failure is only logged."""
        try:
            self.bring_up(self.driver, self._stopped)
        except NodesideError as error:
            log.warning(str(error), driver=self.driver, reason=error.reason, hint=error.hint)

    @property
    def may_stop_for_unload(self) -> bool:
        """Return whether an unload may stop the services: not for a while after it did in vain."""
        return self.clock.now() >= self._vain_until

    def note_vain_stop(self) -> None:
        """Note that something else holds the modules, which nothing on the node shows."""
        self._vain_until = self.clock.now() + _VAIN

    def _start_service(self, kept: _KeptService) -> None:
        """Start it, after ending what is left of it, from this process or from an earlier one.

        Raises ServiceFailed.
        """
        service = kept.service
        if kept.problem and self.clock.now() < kept.not_before:
            raise self._failure_error(kept)
        seconds = service.stop_timeout_seconds
        processes.end_processes(self.driver, service.name, seconds, self.clock)
        log.fact("starting a service", service=service.name)
        kept.starts += 1
        try:
            kept.process = RunningService(self.driver, service, self.clock)
        except NodesideError as error:
            raise self._note_failure(kept, f"cannot be started: {error}") from error

    def _await_ready(self, kept: _KeptService, stopping: Callable[[], bool]) -> None:
        """Wait until it is ready. Raises ServiceFailed if it has ended, or takes too long."""
        assert kept.process is not None
        process, service = kept.process, kept.service
        deadline = self.clock.now() + service.start_timeout_seconds
        while why := process.why_not_ready():
            kept.is_ready = False
            if stopping():
                raise StoppedWaiting(f"stopped while waiting for service {service.name}")
            self.find_ends()
            if kept.process is None:
                raise self._failure_error(kept)
            if self.clock.now() >= deadline:
                seconds = self.clock.now() - process.started
                process.stop()
                last = process.output.last_lines()
                late = f"was not ready within {service.start_timeout_seconds} s: {why}{last}"
                raise self._note_failure(kept, late, seconds)
            self.clock.sleep(_LOOK)
        self.find_ends()
        if kept.process is None:
            raise self._failure_error(kept)
        if not kept.is_ready:
            log.fact("a service is ready", service=service.name)
        kept.is_ready, kept.problem = True, ""

    def _note_failure(self, kept: _KeptService, problem: str, ran: float = 0.0) -> ServiceFailed:
        """Note a failure, and when it is started again. Returns the error."""
        if ran >= _LONG:
            kept.pause = _FIRST_PAUSE
        kept.process, kept.is_ready, kept.problem = None, False, problem
        kept.not_before = self.clock.now() + kept.pause
        kept.pause = min(2 * kept.pause, _LONGEST_PAUSE)
        return self._failure_error(kept)

    def _failure_error(self, kept: _KeptService) -> ServiceFailed:
        hints = [_privilege_hint(kept.problem), "it is started again in a moment, later each time"]
        return ServiceFailed(
            f"service {kept.service.name} {kept.problem}",
            hint="; ".join(hint for hint in hints if hint),
        )

    def _stop_service(self, name: str) -> None:
        kept = self._kept[name]
        if kept.process is not None:
            log.fact("stopping a service", service=name)
            kept.process.stop()
        self._kept[name] = _KeptService(kept.service, starts=kept.starts)


def stop_all(driver: str, services: Sequence[Service], clock: Clock | None = None) -> list[str]:
    """Stop the services that another process started, the last one first. Returns their names.

    For commands that a person runs beside the driver container's own process.
    """
    stopped = []
    for service in reversed(services):
        if not processes.find_running(driver, service.name).pids:
            continue
        log.fact("stopping a service", service=service.name)
        seconds = service.stop_timeout_seconds
        left = processes.end_processes(driver, service.name, seconds, clock or Clock())
        if left:
            raise ServiceFailed(
                f"service {service.name} does not end: stuck in the kernel: "
                f"pid {', '.join(map(str, left))}",
                hint="see the kernel log: dmesg | tail",
            )
        stopped.append(service.name)
    return stopped


def _privilege_hint(problem: str) -> str:
    """Return what a container without `privileged` lacks, if that seems to be the reason."""
    if any(words in problem for words in ("Permission denied", "Operation not permitted")):
        return (
            "services have the capabilities and devices of the driver container; more takes "
            "privileged: true in driver.yaml"
        )
    return ""


def _not_ready_message(kept: _KeptService) -> str:
    """Return why it is not ready, "" if it is."""
    if kept.is_ready:
        return ""
    return kept.problem or ("it starts" if kept.process else "it does not run")
