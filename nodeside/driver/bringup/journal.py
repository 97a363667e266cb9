"""The record of one run: verdicts, stage durations, and the report made from them.

`--output json` prints the report; the table and the status of a NodeDriver are made from it. Its
JSON form is documented in docs/output.md and is stable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeside import log
from nodeside.driver.kernel.boot_parameters import COMMAND_LINE, requested_parameters
from nodeside.driver.ladder.plan import Verdict
from nodeside.driver.ladder.task import Task
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.node_status import NodeDriverStatus, Rung, ServiceStatus, State
from nodeside.values import frozen

if TYPE_CHECKING:
    from nodeside.driver.services.services import Services


@frozen
class Report:
    """The outcome of a run. `stages` maps each stage to its duration in seconds, in run order."""

    driver: str
    version: str
    kernel: str
    key: str
    state: State
    source: Rung | None = None
    modules: tuple[str, ...] = ()
    services: tuple[ServiceStatus, ...] = ()
    rungs: tuple[Verdict, ...] = ()
    checks: tuple[Mapping[str, object], ...] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    hint: str = ""
    exit_code: ExitCode = ExitCode.OK
    retryable: bool = False


@dataclass
class Journal:
    """A record that is filled while a task runs; `announce` is called with every new state."""

    task: Task
    announce: Callable[[NodeDriverStatus], None] = field(default=lambda _: None)
    clock: Callable[[], float] = time.monotonic
    verdicts: tuple[Verdict, ...] = ()
    checks: tuple[Mapping[str, object], ...] = ()
    stages: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    source: Rung | None = None
    services: Services | None = None  # those that this process runs
    announced: NodeDriverStatus | None = None  # the last status that was announced

    @contextmanager
    def time_stage(self, name: str) -> Iterator[None]:
        """Time a stage. The durations of a stage that runs twice are added up."""
        started = self.clock()
        try:
            with log.step(name, driver=self.task.name):
                yield
        finally:
            spent = self.clock() - started
            self.stages[name] = round(self.stages.get(name, 0.0) + spent, 3)

    def add_note(self, text: str) -> None:
        """Record something that a person should know but that is not a failure."""
        log.fact(text, driver=self.task.name)
        self.notes.append(text)

    def announce_state(self, state: State, message: str = "", *, reason: str = "") -> None:
        """Announce a new state."""
        self._announce_report(self.make_report(state, reason=reason, message=message))

    def announce_obstacle(self, error: NodesideError) -> None:
        """Announce that the unload waits for this obstacle to pass; this is not a failure."""
        self._announce_report(
            self.make_report(
                State.UNLOADING, reason=error.reason, message=str(error), hint=error.hint
            )
        )

    def report_ready(self) -> Report:
        report = self.make_report(State.READY)
        self._announce_report(report)
        return report

    def report_failure(self, error: NodesideError, *, announce: bool = True) -> Report:
        """Return the report of a failure. A loaded module that cannot be unloaded needs a reboot.

        That includes a module in use, although its unload is retried: its holder may release it,
        and then the next try makes the driver ready. Until then only a reboot is certain to help,
        so the label may as well ask for one. The message names the holder.
        """
        stuck = error.exit_code in (ExitCode.REBOOT_REQUIRED, ExitCode.IN_USE)
        waits = error.exit_code is ExitCode.WAITS_FOR_DRIVER
        state = State.REBOOT_REQUIRED if stuck else State.WAITING if waits else State.FAILED
        report = self.make_report(
            state,
            reason=error.reason,
            message=str(error),
            hint=error.hint,
            exit_code=error.exit_code,
            retryable=error.retryable,
        )
        if announce:
            self._announce_report(report)
        return report

    def make_report(
        self,
        state: State,
        *,
        reason: str = "",
        message: str = "",
        hint: str = "",
        exit_code: ExitCode = ExitCode.OK,
        retryable: bool = False,
    ) -> Report:
        task = self.task
        return Report(
            driver=task.name,
            version=task.version,
            kernel=task.kernel.release,
            key=task.key,
            state=state,
            source=self.source,
            modules=task.wanted.names,
            services=self.services.status if self.services else (),
            rungs=self.verdicts,
            checks=self.checks,
            stages=dict(self.stages),
            notes=tuple(self.notes),
            reason=reason,
            message=message,
            hint=hint,
            exit_code=exit_code,
            retryable=retryable,
        )

    def _announce_report(self, report: Report) -> None:
        self.announced = self.status_of_report(report)
        self.announce(self.announced)

    def status_of_report(self, report: Report) -> NodeDriverStatus:
        """Return the report as the status of this node's NodeDriver."""
        return NodeDriverStatus(
            driver=report.driver,
            node=self.task.config.node,
            state=report.state,
            version=report.version,
            kernel=report.kernel,
            boot_id=self.task.boot_id,
            reason=report.reason,
            message=report.message,
            hint=report.hint,
            source=report.source,
            key=report.key,
            revision=self.task.config.revision,
            toolkit=self.task.config.toolkit,
            modules=report.modules,
            stages=report.stages,
            services=report.services,
            parameters=self._parameters_of_boot(),
        )

    def _parameters_of_boot(self) -> tuple[str, ...]:
        """Return what the kernel's command line says of the modules, and what overrules it."""
        asked = requested_parameters(self.task.driver.spec.modules, self.task.command_line)
        return tuple(
            each.in_words() for each in asked if each.source == COMMAND_LINE or each.overruled
        )
