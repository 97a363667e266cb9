"""Bring a driver up: climb the ladder, install the bundle it yields, validate.

This file holds the control flow. `plan.py` makes the decisions, `rungs.py` tries the rungs, and
`installation.py` loads the modules.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

from nodeside import log
from nodeside.driver.bringup.attempt import Attempt
from nodeside.driver.bringup.deaths import find_death
from nodeside.driver.bringup.hooks import repetition_message, run_hooks
from nodeside.driver.bringup.installation import (
    Installation,
    conflicting_names,
    record_of,
    stays_until_reboot,
    wanted_modules,
)
from nodeside.driver.bringup.journal import Report
from nodeside.driver.bringup.neighbours import (
    clear_leaving,
    leaving_predecessors,
    require_predecessors,
)
from nodeside.driver.bringup.observe import loaded_by_nodeside, observe
from nodeside.driver.bringup.teardown import finish_unload, unload_driver
from nodeside.driver.bringup.validate import (
    Validation,
    ValidationFailed,
    ValidationInputs,
    validate,
)
from nodeside.driver.bundle import retention
from nodeside.driver.bundle.manifest import BundleManifest
from nodeside.driver.bundle.trust import trust_mark
from nodeside.driver.handoff.result import StoppedWaiting
from nodeside.driver.kernel.unload import modules_to_unload
from nodeside.driver.ladder import plan, rungs
from nodeside.driver.ladder.exported_symbols import clear_symbols, write_symbols
from nodeside.driver.ladder.task import Task
from nodeside.driver.node.kernel_log import Mark
from nodeside.driver.node.load_mark import clear_mark
from nodeside.driver.node.loaded_record import Cleared, HooksRun, LoadedModule, LoadedRecord
from nodeside.driver.node.run_directory import read_loaded, write_cleared, write_loaded
from nodeside.errors import ExitCode, NodesideError, NoSpace
from nodeside.protocol.node_status import NOTHING_SERVED, Rung, State
from nodeside.protocol.ready_file import clear_ready
from nodeside.protocol.records import encode
from nodeside.values import frozen

if TYPE_CHECKING:
    from nodeside.driver.userspace.versions import Versions

_PAUSE = 0.1  # seconds between polls of a module that is loading or unloading


class NoRungServed(NodesideError):
    """Failure of every rung: loaded, cached, fetched, compatible and built."""

    exit_code = ExitCode.FETCH
    reason = NOTHING_SERVED
    retryable = True


def bring_up(attempt: Attempt, *, closed: Collection[Rung] = ()) -> Report:
    """Load the desired modules unless they are loaded already, start services, and validate.

    A driver that comes after others is loaded once they are ready, and unloaded before they are.
    The rungs in `closed` are skipped. Raises NodesideError.
    """
    task, journal, services = attempt.task, attempt.journal, attempt.services
    if services is not None and not services.are_ready(task.driver.spec.services):
        clear_ready(task.host, task.name)
    clear_leaving(task)
    trust_mark(task.trust)  # raises if the certificate is unreadable: then touch nothing
    _await_settled(attempt)
    _unload_for_predecessor(attempt)
    observed = observe(task, attempt.loader)
    if not task.wanted.names or plan.prove_loaded(task.wanted, observed)[0] is None:
        require_predecessors(task)
    decision = climb_ladder(attempt, observed, closed=closed)
    if isinstance(decision.action, plan.GiveUp):
        raise _no_rung_error(task, decision, closed)
    files = _copy_files(attempt)
    mark = None
    match decision.action:
        case plan.Keep(proof):
            journal.source = Rung.LOADED
            if isinstance(proof, BundleManifest):
                write_symbols(task.host, proof)
            loaded = wanted_modules(task, proof)
            _follow_firmware_path(task)
            record = _run_after_load_hooks(attempt, _update_record(task, observed.record, proof))
        case plan.Use(rung, bundle):
            died = find_death(task, bundle.manifest)
            if died is not None and not attempt.by_person:
                raise died
            journal.source = rung
            ours = loaded_by_nodeside(task, observed.record, attempt.loader)
            finish_unload(attempt, observed.record, left=ours)
            record, mark = Installation(attempt, observed, bundle, rung).run()
            loaded = record.modules
        case plan.TryRung():
            raise AssertionError("climb_ladder tries rungs until none is left to try")
        case _:
            assert_never(decision.action)
    _start_services(attempt)
    _prove_loaded(attempt, loaded, record, mark=mark)
    if files is not None:
        files.make_current()
    report = journal.report_ready()
    _collect_bundles(task)
    _collect_files(task)
    return report


def _unload_for_predecessor(attempt: Attempt) -> None:
    """Unload this driver if one that it comes after leaves, and raise WaitsForDriver."""
    task = attempt.task
    leaving = leaving_predecessors(task)
    if not leaving:
        return
    names = ", ".join(leaving)
    record = read_loaded(task.host, task.name, task.boot_id)
    ours = loaded_by_nodeside(task, record, attempt.loader)
    if ours and stays_until_reboot(task):
        log.warning(f"{names} is to leave, but only a reboot removes {task.name}")
        return
    begin = partial(attempt.journal.announce_state, State.UNLOADING, f"leaves before {names} does")
    unload_driver(attempt, modules_to_unload((), record, ours), record, begin=begin)
    # What was cleared is for the removal, which is still to come.
    left = record.cleared if record else Cleared()
    write_cleared(task.host, task.name, record, left, awaits=leaving)
    clear_symbols(task.host, task.name)
    require_predecessors(task)


def report_if_loaded(attempt: Attempt) -> Report | None:
    """Return the report of the loaded modules if they are provably the desired ones, else None.

    Validates them, but queries no prebuilt source. Raises NodesideError if the validation fails.
    """
    task, journal = attempt.task, attempt.journal
    observed = observe(task, attempt.loader, query_sources=False)
    proof, _ = plan.prove_loaded(task.wanted, observed)
    if proof is None:
        return None
    journal.source = Rung.LOADED
    _prove_loaded(attempt, wanted_modules(task, proof), observed.record)
    return journal.report_ready()


def _await_settled(attempt: Attempt) -> None:
    """Wait for a load that a killed driver process began: until it ends, the state is undefined.

    A module whose load has not ended at the deadline of an init function is added to `stuck`, so
    that no later attempt waits for it. What to do about it is decided by the plan.
    """
    loader, stuck = attempt.loader, attempt.earlier.stuck
    until = loader.clock.now() + loader.deadlines.init
    announced = False
    while True:
        rows = loader.modules.rows()
        states = [rows[name] for name in attempt.task.wanted.names if name in rows]
        moving = {state.name: state for state in states if state.initstate != "live"}
        stuck.intersection_update(moving)
        if moving.keys() == stuck:
            return
        if loader.clock.now() >= until:
            stuck.update(moving)
            return
        words = ", ".join(f"{state.name} is {state.initstate}" for state in moving.values())
        if attempt.listener.stopping():
            raise StoppedWaiting(f"stopped while {words}")
        if not announced:
            attempt.journal.announce_state(State.LOADING, f"{words}; waiting until that ends")
            announced = True
        loader.clock.sleep(_PAUSE)


def climb_ladder(
    attempt: Attempt, observed: plan.Observed, *, closed: Collection[Rung] = ()
) -> plan.Decision:
    """Try the rungs in order until one serves or none is left."""
    task, journal = attempt.task, attempt.journal
    while True:
        decision = plan.climb_ladder(task.wanted, observed)
        journal.verdicts = decision.verdicts
        if not isinstance(decision.action, plan.TryRung):
            return decision
        rung = decision.action.rung
        if rung in closed:
            observed = observed.with_finding(rung, plan.RungFinding("not requested"))
            continue
        if rung is Rung.BUILT:
            journal.announce_state(State.BUILDING)
        with journal.time_stage(_STAGES[rung]):
            observed = observed.with_finding(rung, rungs.try_rung(task, rung, attempt.listener))


_STAGES = {
    Rung.CACHED: "look in cache",
    Rung.FETCHED: "fetch",
    Rung.COMPATIBLE: "compare symbols",
    Rung.BUILT: "build",
}


def _prove_loaded(
    attempt: Attempt,
    loaded: Sequence[LoadedModule],
    record: LoadedRecord | None,
    *,
    mark: Mark | None = None,
) -> None:
    """Validate, and store the result in the record. Raises ValidationFailed.

    The result must outlive this process: our own load triggers the next attempt, the driver may be
    killed after the load, and a command may be repeated. The next attempt must not accept modules
    about which the kernel complained, or whose kernel log was never checked.
    """
    host = attempt.task.host
    try:
        validate_loaded(attempt, loaded, record, mark=mark)
    except ValidationFailed as error:
        splat = error.validation.splat
        if record is not None and splat and splat != record.splat:
            write_loaded(host, replace(record, splat=splat))
        raise
    if record is not None and record.mark is not None:
        write_loaded(host, replace(record, mark=None))  # later log lines are unrelated
    clear_mark(host, attempt.task.name)


def validate_loaded(
    attempt: Attempt,
    loaded: Sequence[LoadedModule],
    record: LoadedRecord | None,
    *,
    mark: Mark | None = None,
) -> None:
    """Run the checks of driver.yaml, and check the kernel log after a mark.

    Without `mark`, the mark of the record is used. Raises ValidationFailed. The journal gets the
    table of checks in either case.
    """
    task, journal, loader = attempt.task, attempt.journal, attempt.loader
    splat = ""
    if record is not None and record.has_one_of(loaded):
        splat = record.splat
        if mark is None and record.mark is not None:
            mark = Mark(record.mark)
    inputs = ValidationInputs(task.host, loader.kernel_log, mark, splat, loader.clock)
    with journal.time_stage("validate"):
        try:
            validation: Validation = validate(task.driver.spec.validate, loaded, inputs)
        except ValidationFailed as error:
            journal.checks = tuple(encode(check) for check in error.validation.checks)
            raise
        journal.checks = tuple(encode(check) for check in validation.checks)


def _follow_firmware_path(task: Task) -> None:
    """Put firmware where the kernel searches now: somebody may have changed that since the load."""
    firmware = task.driver.spec.firmware
    if firmware is None:
        return
    from nodeside.driver.kernel.firmware import FirmwareDirectory

    try:
        FirmwareDirectory(task.host).follow_search_path(task.path(firmware.path), task.name)
    except NodesideError as error:  # the modules work: they have what they asked for at the load
        log.warning(str(error), driver=task.name, reason=error.reason, hint=error.hint)


def _run_after_load_hooks(attempt: Attempt, record: LoadedRecord) -> LoadedRecord:
    """Run the hooks of the load, unless they have run.

    They run again if an unload failed after its own hooks had run, and if a process was killed
    within hooks of either kind. Where no record can be written, no later attempt could know of
    them: then none begins.
    """
    task = attempt.task
    hooks = task.driver.spec.hooks.after_load
    wanted = HooksRun.AFTER_LOAD if hooks else HooksRun.NONE
    done = replace(record, hook="")
    have_run = record.hooks in (wanted, HooksRun.AFTER_LOAD)
    if not have_run or record.is_within("beforeUnload"):
        if hooks and record.hook:
            attempt.journal.add_note(repetition_message(record, "afterLoad"))
        run_hooks(task.host, record, "afterLoad", hooks, only_recorded=True)
        done = replace(done, hooks=wanted)
    if done == record:
        return record
    write_loaded(task.host, done)
    return done


@frozen
class _Files:
    """A version of the files of `userspace` that has been copied to the host."""

    versions: Versions
    digest: str

    def make_current(self) -> None:
        if self.versions.make_current(self.digest):
            log.fact("these files are current", directory=self.versions.directory / self.digest)


def _copy_files(attempt: Attempt) -> _Files | None:
    """Copy the files of `userspace` to the host before anything else is touched.

    Return None if the driver has no such files.
    """
    task, digests = attempt.task, attempt.earlier.digests
    wanted = task.driver.spec.userspace
    if wanted is None:
        return None
    from nodeside.driver.userspace.tree import Tree
    from nodeside.driver.userspace.versions import Versions

    versions = Versions(task.host, task.name)
    tree = Tree(wanted.paths, is_trusted=wanted.privileged_files)
    if tree not in digests or not (versions.directory / digests[tree]).is_dir():
        with attempt.journal.time_stage("copy files"):
            digests[tree] = tree.digest()
            try:
                versions.copy_version(tree, digests[tree])
            except NoSpace:
                versions.remove_unused(at_once=True)
                versions.copy_version(tree, digests[tree])
    return _Files(versions, digests[tree])


def _collect_files(task: Task) -> None:
    """Remove files that nothing uses. A disk that does not let us is no reason to fail."""
    if not (task.host.userspace / task.name).is_dir():
        return
    from nodeside.driver.userspace.versions import Versions

    versions = Versions(task.host, task.name)
    try:
        if task.driver.spec.userspace is None:
            versions.remove_all()
        else:
            versions.remove_unused()
    except NodesideError as error:
        log.warning(str(error), driver=task.name, reason=error.reason, hint=error.hint)


def _start_services(attempt: Attempt) -> None:
    """Start the services that do not run. Until they are ready, the driver is not."""
    task, journal, services = attempt.task, attempt.journal, attempt.services
    wanted = task.driver.spec.services
    if services is None:
        if wanted:
            journal.add_note("services are not started: `nodeside driver run` starts them")
        return
    if services.are_ready(wanted):
        return
    with journal.time_stage("services"):
        services.bring_up(task.name, wanted, attempt.listener.stopping)


def _update_record(task: Task, record: LoadedRecord | None, proof: plan.Proof) -> LoadedRecord:
    """Update loaded.json after the desired modules were found loaded.

    The record may be missing because a process was killed before it wrote it. It may also name the
    previous version, if the new one has the same modules, or the previous trust.
    """
    identity = (proof.key, task.version, trust_mark(task.trust))
    others = (task.driver.spec.after, stays_until_reboot(task), conflicting_names(task))
    if record is not None and (*identity, *others) == (
        *(record.key, record.version, record.trust, record.after, record.stays),
        record.conflicts,
    ):
        return record
    source = Rung.LOADED if record is None else record.source
    if proof.key != task.key:
        source = Rung.COMPATIBLE
    fresh = record_of(task, proof, source, record.devices if record else ())
    if record is not None:
        fresh = replace(fresh, cleared=record.cleared)
    if record is not None and record.has_one_of(fresh.modules):
        fresh = replace(fresh, mark=record.mark, splat=record.splat)
        fresh = replace(fresh, hooks=record.hooks, hook=record.hook)
    write_loaded(task.host, fresh)
    return fresh


def _no_rung_error(task: Task, decision: plan.Decision, closed: Collection[Rung]) -> NoRungServed:
    hint = "give the driver a toolkit (--shared) or a prebuilt source (spec.prebuilt.sources)"
    file = task.config.driver_file
    if not task.wanted.names:
        hint = f"unload them with the driver.yaml that has them: nodeside driver unload -f {file}"
    elif closed:
        verb = "fetch" if task.sources else "build"
        hint = f"put them into the cache first: nodeside driver {verb} -f {file}"
    return NoRungServed(
        "no way to get the modules: "
        + "; ".join(f"{v.rung.value}: {v.why}" for v in decision.verdicts),
        hint=hint,
    )


def _collect_bundles(task: Task) -> None:
    """Delete the cached bundles that no version or kernel is likely to return to."""
    record = read_loaded(task.host, task.name, task.boot_id)
    manifests = task.cache.list_manifests(task.name)
    key = record.key if record else ""
    keep = retention.tags_to_keep(manifests, task.tag, task.kernel, key)
    for tag in task.cache.remove_other_bundles(task.name, keep):
        log.fact("dropped an old bundle from the cache", tag=tag)
