"""The verbs of `nodeside driver` about loaded modules: load, validate.

Each verb is one function, made of the same parts as the container's own run, and returns what is
printed. For unload, see unload.py.
"""

from __future__ import annotations

from nodeside.driver.announce.announcer import make_announcer
from nodeside.driver.bringup import bringup, installation
from nodeside.driver.bringup.attempt import Attempt
from nodeside.driver.bringup.journal import Journal, Report
from nodeside.driver.bringup.observe import expected_modules, observe
from nodeside.driver.commands import bundles
from nodeside.driver.commands.console import SIDECAR_TIMEOUT, make_listener
from nodeside.driver.commands.dry_run import KEEP, loading_steps, observe_node
from nodeside.driver.commands.outcome import CommandOutput, dry_run_outcome
from nodeside.driver.commands.report import announcement_document, as_outcome
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.ladder import plan, rungs
from nodeside.driver.ladder.compatible import look_for_compatible
from nodeside.driver.ladder.task import Task
from nodeside.driver.node import run_directory
from nodeside.driver.node.load_mark import clear_mark
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.node_status import Rung
from nodeside.spec.model import Reuse

_LOCK_TIMEOUT = 10.0  # seconds; a person waits less than a pod


class NotProven(NodesideError):
    """Loaded modules that are not proven to be the right ones, even if they pass the checks."""

    exit_code = ExitCode.VALIDATION_FAILED
    reason = "NotProven"


def load(task: Task) -> CommandOutput:
    """Load from the cache without fetching or building, under the lock; validate; announce.

    A person asks for it, so even a bundle is loaded in whose load an earlier kernel died.
    """
    console = make_listener(SIDECAR_TIMEOUT)
    closed = (Rung.FETCHED, Rung.BUILT)
    with make_announcer(task.host) as announcer:
        journal = Journal(task, announcer.report_state)
        with run_directory.hold_lock(task.host, task.name, timeout=_LOCK_TIMEOUT):
            attempt = Attempt(task, journal, Loader(task.host), console, by_person=True)
            report = _bring_up(attempt, closed)
            clear_mark(task.host, task.name, boot_id=task.boot_id)
    return as_outcome(report, announcement_document(journal))


def would_load(task: Task) -> CommandOutput:
    """Return what would be loaded, or every reason to refuse it."""
    known = observe_node(task)
    if plan.prove_loaded(task.wanted, known)[0] is not None:
        return dry_run_outcome(task, KEEP, "validate")
    finding = rungs.peek_in_cache(task)
    if finding.bundle is None and task.wanted.reuse is Reuse.CRC:
        finding = look_for_compatible(task, None)
    checked = installation.check_bundle(task, bundles.require_cached(task, finding))
    steps = [f"refuse: {refusal.message}" for refusal in checked.refusals] or loading_steps(
        task, known
    )
    return dry_run_outcome(task, *steps, *(f"note: {note}" for note in checked.notes))


def _bring_up(attempt: Attempt, closed: tuple[Rung, ...]) -> Report:
    try:
        return bringup.bring_up(attempt, closed=closed)
    except NodesideError as error:
        # A refusal before anything was touched is reported to the caller, but not announced.
        journal = attempt.journal
        return journal.report_failure(error, announce=journal.announced is not None)


def validate(task: Task) -> CommandOutput:
    """Run the checks of driver.yaml against the loaded modules."""
    journal = Journal(task)
    loader = Loader(task.host)
    observed = observe(task, loader)
    loaded, unproven = expected_modules(task, observed)
    _, why = plan.prove_loaded(task.wanted, observed)
    journal.verdicts = (plan.Verdict(Rung.LOADED, not unproven, why),)
    journal.source = None if unproven else Rung.LOADED
    try:
        if all(module.name not in observed.in_kernel for module in loaded):
            raise NotProven(why, hint=f"nodeside driver load -f {task.config.driver_file}")
        bringup.validate_loaded(Attempt(task, journal, loader), loaded, observed.record)
        if unproven:
            raise NotProven(
                f"every check passes, but nothing proves that the right modules are loaded: {why}",
                hint=f"nodeside driver plan -f {task.config.driver_file}",
            )
    except NodesideError as error:
        return as_outcome(journal.report_failure(error))
    return as_outcome(journal.report_ready())


def would_validate(task: Task) -> CommandOutput:
    """Return what would be checked."""
    spec = task.driver.spec.validate
    lines = [f"check that the module {name} is live" for name in task.wanted.names]
    lines += [f"check that {path} is a device" for path in spec.devices]
    for pci in spec.bound:
        device = f"{pci.vendor}:{pci.device or '*'}"
        lines.append(f"check that {device} is bound to {pci.driver}")
    for check in spec.sysfs:
        path = f"/sys/{check.path.removeprefix('/sys/')}"
        lines.append(
            f"write {check.write!r} to {path} and check it" if check.write else f"check {path}"
        )
    lines += [f"run {' '.join(item.command)}" for item in spec.commands]
    return dry_run_outcome(task, *lines)
