"""What the ladder would do, without doing it: `plan`, and `run --dry-run`.

Pure decisions with read-only looks. The cache is read, and prebuilt sources are asked for the
manifest only. Nothing is fetched, built, loaded, unloaded or waited for. The dry run of any other
verb stands beside the verb.
"""

from __future__ import annotations

from typing import assert_never

from nodeside.driver.bringup.deaths import find_death
from nodeside.driver.bringup.observe import observe
from nodeside.driver.commands.outcome import (
    CommandOutput,
    as_document,
    identity_fields,
    parameter_rows,
    parameters_of,
)
from nodeside.driver.commands.steps import hook_steps, service_steps, steps_before_unload
from nodeside.driver.kernel import conflicts
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.kernel.unload import modules_to_unload, plan_unload
from nodeside.driver.ladder import plan, rungs
from nodeside.driver.ladder.compatible import look_for_compatible
from nodeside.driver.ladder.plan import RungFinding
from nodeside.driver.ladder.task import Task
from nodeside.errors import ExitCode
from nodeside.protocol.node_status import Rung
from nodeside.spec.model import Restore
from nodeside.system.pci import pci_devices
from nodeside.text.table import table


def preview_run(task: Task) -> CommandOutput:
    """Return the verdict on each rung, and what a run would do."""
    known = observe_node(task)
    steps, verdicts = _preview_climb(task, known)
    parameters = parameters_of(task)
    document = {
        **identity_fields(task),
        "parameters": as_document(parameters),
        "rungs": as_document(verdicts),
        "would": steps,
    }
    rows = [(v.rung.value, "serves" if v.served else "-", v.why) for v in verdicts]
    head = [
        ("driver", f"{task.name} {task.version}"),
        ("kernel", task.kernel.release),
        ("bundle", task.tag),
        *parameter_rows(parameters),
    ]
    ladder = table(rows, header=("RUNG", "", "WHY"))
    text = "\n\n".join([table(head), ladder, "\n".join(f"would {line}" for line in steps)])
    return CommandOutput(document, text=text)


def _runs_here(task: Task) -> bool:
    return task.kernel == task.host.kernel


def observe_node(task: Task) -> plan.Observed:
    """Return the observed state; empty for a kernel that does not run here."""
    return observe(task, Loader(task.host)) if _runs_here(task) else plan.Observed({})


def _preview_climb(task: Task, known: plan.Observed) -> tuple[list[str], tuple[plan.Verdict, ...]]:
    while True:
        decided = plan.climb_ladder(task.wanted, known)
        verdicts = decided.verdicts
        if not _runs_here(task):
            elsewhere = f"{task.kernel.release} does not run here"
            verdicts = (plan.Verdict(Rung.LOADED, False, elsewhere), *verdicts[1:])
        match decided.action:
            case plan.Keep():
                return [KEEP, *service_steps(task), "validate"], verdicts
            case plan.GiveUp():
                return ["fail: no rung is left"], verdicts
            case plan.Use(rung, bundle):
                use = f"use the bundle ({rung.value})"
                died = find_death(task, bundle.manifest) if _runs_here(task) else None
                steps = [f"refuse: {died}"] if died else loading_steps(task, known)
                return [use, *steps], verdicts
            case plan.TryRung(rung):
                finding = _peek_at_rung(task, rung)
                if finding is None:
                    failed = rungs.find_earlier_error(task) if rung is Rung.BUILT else None
                    if failed is not None:
                        message = str(failed).partition("\n")[0]
                        hint = f" ({failed.hint})" if failed.hint else ""
                        why = f"the same build failed before: {message}{hint}"
                        verdicts = (*verdicts, plan.Verdict(rung, False, why))
                        if failed.exit_code == ExitCode.EXCLUDED:
                            return [f"fail: {message}"], verdicts
                    return [_MAKE[rung], *loading_steps(task, known)], verdicts
                known = known.with_finding(rung, finding)
            case _:
                assert_never(decided.action)


KEEP = "touch nothing: the right modules are loaded"
_MAKE = {Rung.FETCHED: "fetch the bundle", Rung.BUILT: "ask the toolkit to build"}


def _peek_at_rung(task: Task, rung: Rung) -> RungFinding | None:
    """Return what a look at this rung would find; None if it would fetch or build."""
    match rung:
        case Rung.LOADED | Rung.CACHED:
            return rungs.peek_in_cache(task)
        case Rung.FETCHED:
            answer = rungs.ask_sources(task)
            if answer.manifest is not None:
                return None
            return RungFinding("; ".join(str(line) for line in answer.results))
        case Rung.COMPATIBLE if not _runs_here(task):
            return RungFinding(f"known once {task.kernel.release} runs")
        case Rung.COMPATIBLE:
            return look_for_compatible(task, None)
        case Rung.BUILT:
            return None
    assert_never(rung)


def loading_steps(task: Task, known: plan.Observed) -> list[str]:
    """Return the steps that would follow once there is a bundle."""
    if not _runs_here(task):
        return []
    wanted = task.wanted
    who = plan.find_occupant(known)
    decision, why = plan.decide_replacement(who, wanted.upgrade, wanted.unload, wanted.foreign)
    rows = Loader(task.host).modules.rows()
    cleared = conflicts.plan_clear(
        task.driver.spec.conflicts,
        rows,
        pci_devices(task.host),
        wanted.names,
    )
    hooks = task.driver.spec.hooks
    loads = [
        *cleared.steps_in_words,
        f"load {', '.join(wanted.names)}",
        *hook_steps(hooks.after_load),
    ]
    loads += [*service_steps(task), "validate"]
    if cleared.remove.order or cleared.unbind:
        kept = task.driver.spec.conflicts.restore is Restore.NEVER
        back = (*cleared.remove.order, *(item.address for item in cleared.unbind))
        loads += [] if kept else [f"bring back when the driver is removed: {', '.join(back)}"]
    match decision:
        case plan.Replacement.LOAD:
            return loads
        case plan.Replacement.REPLACE:
            going = plan_unload(
                modules_to_unload(wanted.names, known.record, known.in_kernel), rows
            ).order
            unloads = [f"unload {', '.join(going)} ({who.value})", *hook_steps(hooks.after_unload)]
            return [*steps_before_unload(task), *unloads, *loads]
        case plan.Replacement.AFTER_REBOOT:
            return [f"wait for a reboot: {why}"]
        case plan.Replacement.REFUSE:
            return [f"refuse: {why}"]
    assert_never(decision)
