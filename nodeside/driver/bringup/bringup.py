"""Bring a driver up: climb the ladder, install what was found, validate.

The order of things, for whoever reads only one file. Decisions are `plan.py`'s, looks at the rungs
`rungs.py`'s, the way into the kernel `installation.py`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import assert_never

from nodeside import log
from nodeside.contract import NOTHING_SERVED, LoadedModule, LoadedRecord, Rung, State
from nodeside.driver.bringup.installation import Installation, record_of, wanted_modules
from nodeside.driver.bringup.journal import Journal, Report
from nodeside.driver.bringup.observe import observe
from nodeside.driver.bringup.validate import Scene, Validation, ValidationFailed, validate
from nodeside.driver.bundle import retention
from nodeside.driver.bundle.trust import trust_mark
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.handoff.result import StoppedWaiting
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.ladder import plan, rungs
from nodeside.driver.ladder.task import Task
from nodeside.driver.node.kernel_log import Mark
from nodeside.driver.node.run_directory import read_loaded, write_loaded
from nodeside.errors import ExitCode, NodesideError
from nodeside.records import encode

_PAUSE = 0.1  # seconds between looks at a module that comes or goes


class NoRungServed(NodesideError):
    """Neither loaded, nor cached, nor fetched, nor compatible, nor built."""

    exit_code = ExitCode.FETCH
    reason = NOTHING_SERVED
    retryable = True


def bring_up(
    task: Task,
    journal: Journal,
    listener: Listener,
    *,
    closed: Collection[Rung] = (),
    loader: Loader | None = None,
) -> Report:
    """Make the wanted modules the loaded ones, and prove it. Raises NodesideError.

    The rungs in `closed` are not looked at. `loader` is how modules get into the kernel.
    """
    loader = loader or Loader(task.host)
    trust_mark(task.trust)  # what cannot be judged is not touched
    _await_settled(task, journal, loader, listener)
    known = observe(task, loader)
    decided = ascend(task, known, journal, listener, closed=closed)
    match decided.action:
        case plan.Keep(proof):
            journal.source = Rung.LOADED
            record = _remember(task, known.record, proof)
            _prove(task, journal, loader, wanted_modules(task, proof), record)
        case plan.Use(rung, bundle):
            journal.source = rung
            record, mark = Installation(task, journal, loader, known, bundle, rung).run()
            _prove(task, journal, loader, record.modules, record, mark=mark)
        case plan.GiveUp():
            raise _no_rung(task, decided, closed)
        case plan.Look():
            raise AssertionError("ascend looks until there is nothing left to look at")
        case _:
            assert_never(decided.action)
    report = journal.ready()
    _collect(task)
    return report


def judge_loaded(task: Task, journal: Journal, *, loader: Loader | None = None) -> Report | None:
    """The report of a driver whose right modules are loaded, if that can be told without asking
    anybody; else None. Raises NodesideError if they do not validate."""
    loader = loader or Loader(task.host)
    known = observe(task, loader, ask=False)
    proof, _ = plan.loaded_rung(task.wanted, known)
    if proof is None:
        return None
    journal.source = Rung.LOADED
    _prove(task, journal, loader, wanted_modules(task, proof), known.record)
    return journal.ready()


def _await_settled(task: Task, journal: Journal, loader: Loader, listener: Listener) -> None:
    """Let a load end that a killed driver began: until then nobody can say what is loaded.

    One that does not end within the deadline of an init function is left to the plan.
    """
    until = loader.clock.now() + loader.deadlines.init
    told = False
    while loader.clock.now() < until:
        rows = loader.modules.rows()
        states = [rows[name] for name in task.wanted.names if name in rows]
        moving = [state for state in states if state.initstate != "live"]
        if not moving:
            return
        if listener.stopping():
            raise StoppedWaiting(f"stopped while {moving[0].name} was {moving[0].initstate}")
        if not told:
            words = ", ".join(f"{state.name} is {state.initstate}" for state in moving)
            journal.state(State.LOADING, f"{words}; waiting for its end")
            told = True
        loader.clock.sleep(_PAUSE)


def ascend(
    task: Task,
    known: plan.Observed,
    journal: Journal,
    listener: Listener,
    *,
    closed: Collection[Rung] = (),
) -> plan.Decision:
    """Look at one rung after the other until one serves or none is left."""
    while True:
        decided = plan.climb(task.wanted, known)
        journal.verdicts = decided.verdicts
        if not isinstance(decided.action, plan.Look):
            return decided
        rung = decided.action.rung
        if rung in closed:
            known = known.with_finding(rung, plan.Finding("not asked for"))
            continue
        if rung is Rung.BUILT:
            journal.state(State.BUILDING)
        with journal.stage(_STAGES[rung]):
            known = known.with_finding(rung, rungs.look(task, rung, listener))


_STAGES = {
    Rung.CACHED: "look in cache",
    Rung.FETCHED: "fetch",
    Rung.COMPATIBLE: "compare symbols",
    Rung.BUILT: "build",
}


def _prove(
    task: Task,
    journal: Journal,
    loader: Loader,
    loaded: Sequence[LoadedModule],
    record: LoadedRecord | None,
    *,
    mark: Mark | None = None,
) -> None:
    """Validate, and keep what came of it with the record. Raises ValidationFailed.

    The load wakes us, a driver may be killed after it, a command may be typed again: whoever looks
    next must not take modules for good of which the kernel complained, or nobody knows.
    """
    try:
        validate_loaded(task, journal, loader, loaded, record, mark=mark)
    except ValidationFailed as error:
        found = error.validation.splat
        if record is not None and found and found != record.splat:
            write_loaded(task.host, replace(record, splat=found))
        raise
    if record is not None and record.mark is not None:
        write_loaded(task.host, replace(record, mark=None))  # what the log says now is of others


def validate_loaded(
    task: Task,
    journal: Journal,
    loader: Loader,
    loaded: Sequence[LoadedModule],
    record: LoadedRecord | None,
    *,
    mark: Mark | None = None,
) -> None:
    """The checks of driver.yaml, and the kernel log after a mark, that of the record if none is
    given. Raises ValidationFailed.

    The table of checks is in the journal in any case.
    """
    splat = ""
    if record is not None and record.has_one_of(loaded):
        splat = record.splat
        if mark is None and record.mark is not None:
            mark = Mark(record.mark)
    scene = Scene(task.host, loader.kernel_log, mark, splat, loader.clock)
    with journal.stage("validate"):
        try:
            done: Validation = validate(task.driver.spec.validate, loaded, scene)
        except ValidationFailed as error:
            journal.checks = tuple(encode(check) for check in error.validation.checks)
            raise
        journal.checks = tuple(encode(check) for check in done.checks)


def _remember(task: Task, record: LoadedRecord | None, proof: plan.Proof) -> LoadedRecord:
    """Bring loaded.json up to date where the right modules were found loaded.

    It lacks what a killed process could not write any more, or names the version before, if the new
    one has the same modules, or the trust before.
    """
    now = (proof.key, task.version, trust_mark(task.trust))
    if record is not None and (record.key, record.version, record.trust) == now:
        return record
    source = Rung.LOADED if record is None else record.source
    if proof.key != task.key:
        source = Rung.COMPATIBLE
    fresh = record_of(task, proof, source, record.devices if record else ())
    if record is not None and record.has_one_of(fresh.modules):
        fresh = replace(fresh, mark=record.mark, splat=record.splat)
    write_loaded(task.host, fresh)
    return fresh


def _no_rung(task: Task, decided: plan.Decision, closed: Collection[Rung]) -> NoRungServed:
    hint = "give it a toolkit (--shared) or a prebuilt source (spec.prebuilt.sources)"
    if closed:
        file = task.config.driver_file
        verb = "fetch" if task.sources else "build"
        hint = f"put them into the cache first: nodeside driver {verb} -f {file}"
    return NoRungServed(
        "no way to get the modules: "
        + "; ".join(f"{v.rung.value}: {v.why}" for v in decided.verdicts),
        hint=hint,
    )


def _collect(task: Task) -> None:
    """Drop the bundles that nobody will go back to."""
    record = read_loaded(task.host, task.name, task.boot_id)
    shelf = task.cache.manifests(task.name)
    keep = retention.kept(shelf, task.tag, task.kernel, record.key if record else "")
    for tag in task.cache.collect(task.name, keep):
        log.fact("dropped an old bundle from the cache", tag=tag)
