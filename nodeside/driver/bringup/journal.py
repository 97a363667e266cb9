"""What happened during one run: verdicts, stage durations, and the report made of them.

The report is what `--output json` prints, what the table is drawn from, and what the status of a
NodeDriver is filled with. Its JSON form is documented in docs/output.md and is stable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from nodeside import log
from nodeside.contract import NodeDriverStatus, Rung, State
from nodeside.driver.ladder.plan import Verdict
from nodeside.driver.ladder.task import Task
from nodeside.errors import ExitCode, NodesideError


@dataclass(frozen=True)
class Report:
    """The outcome of a run. `stages` maps a stage to its seconds, in the order they ran."""

    driver: str
    version: str
    kernel: str
    key: str
    state: State
    source: Rung | None = None
    modules: tuple[str, ...] = ()
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
    """Filled while a task runs; `tell` is called with every new state."""

    task: Task
    tell: Callable[[NodeDriverStatus], None] = field(default=lambda _: None)
    clock: Callable[[], float] = time.monotonic
    verdicts: tuple[Verdict, ...] = ()
    checks: tuple[Mapping[str, object], ...] = ()
    stages: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    source: Rung | None = None
    told: NodeDriverStatus | None = None  # the last state that was announced

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage; a stage that runs twice adds up."""
        started = self.clock()
        try:
            with log.step(name, driver=self.task.name):
                yield
        finally:
            spent = self.clock() - started
            self.stages[name] = round(self.stages.get(name, 0.0) + spent, 3)

    def note(self, text: str) -> None:
        """Something a person should know, though it is no failure."""
        log.fact(text, driver=self.task.name)
        self.notes.append(text)

    def state(self, state: State, message: str = "", *, reason: str = "") -> None:
        """Announce that the work is now here."""
        self._announce(self.report(state, reason=reason, message=message))

    def waits(self, error: NodesideError) -> None:
        """What is to be unloaded waits for this to pass; it is no failure."""
        self._announce(
            self.report(State.UNLOADING, reason=error.reason, message=str(error), hint=error.hint)
        )

    def ready(self) -> Report:
        report = self.report(State.READY)
        self._announce(report)
        return report

    def failed(self, error: NodesideError, *, announce: bool = True) -> Report:
        """The report of a failure. A loaded module that cannot go is a state of its own.

        That holds for one that is in use too, though it is retried: whoever holds it may let go,
        and then the next try makes the driver ready. Until then a reboot is all that is sure to
        help, and whoever reads the label may as well begin with it. The message says who holds it.
        """
        stuck = error.exit_code in (ExitCode.REBOOT_REQUIRED, ExitCode.IN_USE)
        state = State.REBOOT_REQUIRED if stuck else State.FAILED
        report = self.report(
            state,
            reason=error.reason,
            message=str(error),
            hint=error.hint,
            exit_code=error.exit_code,
            retryable=error.retryable,
        )
        if announce:
            self._announce(report)
        return report

    def report(
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

    def _announce(self, report: Report) -> None:
        self.told = self.status(report)
        self.tell(self.told)

    def status(self, report: Report) -> NodeDriverStatus:
        """The report as the status of this node's NodeDriver."""
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
        )
