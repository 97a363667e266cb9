"""Show what the verbs would do, without doing it: `plan` and every `--dry-run`.

Pure decisions with read-only looks. The cache is read, and prebuilt sources are asked for the
manifest only. Nothing is fetched, built, loaded, unloaded or waited for.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import assert_never

from nodeside.driver.bringup import installation
from nodeside.driver.bringup.deaths import find_death
from nodeside.driver.bringup.observe import loaded_by_nodeside, observe
from nodeside.driver.commands import bundles, services
from nodeside.driver.commands.outcome import (
    CommandOutput,
    as_document,
    dry_run_outcome,
    identity_fields,
    parameter_rows,
    parameters_of,
)
from nodeside.driver.kernel import conflicts
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.kernel.unload import Obstacle, modules_to_unload, plan_unload
from nodeside.driver.ladder import plan, rungs
from nodeside.driver.ladder.compatible import look_for_compatible
from nodeside.driver.ladder.plan import RungFinding
from nodeside.driver.ladder.task import Task
from nodeside.driver.node import run_directory
from nodeside.errors import ExitCode
from nodeside.protocol.node_status import Rung
from nodeside.spec.model import Reuse
from nodeside.spec.services import Hook
from nodeside.system.pci import pci_devices
from nodeside.text.table import table


def preview(task: Task) -> CommandOutput:
    """Return the verdict on each rung, and what a run would do."""
    known = _observe_node(task)
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


def _observe_node(task: Task) -> plan.Observed:
    """Return the observed state; empty for a kernel that does not run here."""
    return observe(task, Loader(task.host)) if _runs_here(task) else plan.Observed({})


def _preview_climb(task: Task, known: plan.Observed) -> tuple[list[str], tuple[plan.Verdict, ...]]:
    while True:
        decided = plan.climb(task.wanted, known)
        verdicts = decided.verdicts
        if not _runs_here(task):
            elsewhere = f"{task.kernel.release} does not run here"
            verdicts = (plan.Verdict(Rung.LOADED, False, elsewhere), *verdicts[1:])
        match decided.action:
            case plan.Keep():
                return [_KEEP, *_service_steps(task), "validate"], verdicts
            case plan.GiveUp():
                return ["fail: no rung is left"], verdicts
            case plan.Use(rung, bundle):
                use = f"use the bundle ({rung.value})"
                died = find_death(task, bundle.manifest) if _runs_here(task) else None
                steps = [f"refuse: {died}"] if died else _loading_steps(task, known)
                return [use, *steps], verdicts
            case plan.TryRung(rung):
                finding = _peek_at_rung(task, rung)
                if finding is None:
                    failed = rungs.earlier_failure(task) if rung is Rung.BUILT else None
                    if failed is not None:
                        message = str(failed).partition("\n")[0]
                        why = f"the same build failed before: {message}"
                        verdicts = (*verdicts, plan.Verdict(rung, False, why))
                        if failed.exit_code == ExitCode.EXCLUDED:
                            return [f"fail: {message}"], verdicts
                    return [_MAKE[rung], *_loading_steps(task, known)], verdicts
                known = known.with_finding(rung, finding)
            case _:
                assert_never(decided.action)


_KEEP = "touch nothing: the right modules are loaded"
_MAKE = {Rung.FETCHED: "fetch the bundle", Rung.BUILT: "ask the toolkit to build"}


def _peek_at_rung(task: Task, rung: Rung) -> RungFinding | None:
    """Return what a look at this rung would find; None if it would fetch or build."""
    match rung:
        case Rung.LOADED | Rung.CACHED:
            return rungs.peek_in_cache(task)
        case Rung.FETCHED:
            said = rungs.ask_sources(task)
            there = said.manifest is not None
            return None if there else RungFinding("; ".join(str(line) for line in said.results))
        case Rung.COMPATIBLE if not _runs_here(task):
            return RungFinding(f"known once {task.kernel.release} runs")
        case Rung.COMPATIBLE:
            return look_for_compatible(task, None)
        case Rung.BUILT:
            return None
    assert_never(rung)


def _loading_steps(task: Task, known: plan.Observed) -> list[str]:
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
    loads = [*cleared.words, f"load {', '.join(wanted.names)}", *_hook_steps(hooks.after_load)]
    loads += [*_service_steps(task), "validate"]
    match decision:
        case plan.Replacement.LOAD:
            return loads
        case plan.Replacement.REPLACE:
            going = plan_unload(
                modules_to_unload(wanted.names, known.record, known.in_kernel), rows
            ).order
            unloads = [f"unload {', '.join(going)} ({who.value})", *_hook_steps(hooks.after_unload)]
            return [*_before_unload(task), *unloads, *loads]
        case plan.Replacement.AFTER_REBOOT:
            return [f"wait for a reboot: {why}"]
        case plan.Replacement.REFUSE:
            return [f"refuse: {why}"]
    assert_never(decision)


def _hook_steps(hooks: Iterable[Hook]) -> list[str]:
    return [f"run {shlex.join(hook.command)}" for hook in hooks]


def _service_steps(task: Task) -> list[str]:
    """Return what `run` would do; other commands start no service."""
    names = ", ".join(service.name for service in task.driver.spec.services)
    return [f"start {names} unless they run (run only)"] if names else []


def _before_unload(task: Task) -> list[str]:
    spec = task.driver.spec
    names = ", ".join(service.name for service in reversed(spec.services))
    return [*_hook_steps(spec.hooks.before_unload), *([f"stop {names}"] if names else [])]


def fetch(task: Task) -> CommandOutput:
    """Return whether a source has the bundle."""
    if rungs.peek_in_cache(task).bundle is not None:
        return dry_run_outcome(task, "fetch nothing: the cache has it")
    if not task.sources:
        return dry_run_outcome(task, "fail: driver.yaml names no prebuilt sources")
    said = rungs.ask_sources(task)
    if said.manifest is None:
        return dry_run_outcome(task, f"fail: {'; '.join(str(line) for line in said.results)}")
    return dry_run_outcome(task, f"fetch it: {said.results[-1]}")


def build(task: Task, *, local: bool = False, again: bool = False) -> CommandOutput:
    """Return whether and where the bundle would be built."""
    if not again and rungs.peek_in_cache(task).bundle is not None:
        return dry_run_outcome(task, "build nothing: the cache has it")
    if not local and task.config.shared is None:
        return dry_run_outcome(task, "fail: no toolkit to build with (--shared or --local)")
    where = "with this machine's compiler" if local else "in the toolkit sidecar"
    return dry_run_outcome(
        task, f"build {', '.join(task.wanted.names)} from {task.source}, {where}"
    )


def load(task: Task) -> CommandOutput:
    """Return what would be loaded, or every reason to refuse it."""
    known = _observe_node(task)
    if plan.prove_loaded(task.wanted, known)[0] is not None:
        return dry_run_outcome(task, _KEEP, "validate")
    finding = rungs.peek_in_cache(task)
    if finding.bundle is None and task.wanted.reuse is Reuse.CRC:
        finding = look_for_compatible(task, None)
    checked = installation.check_bundle(task, bundles.require_cached(task, finding))
    steps = [f"refuse: {refusal.message}" for refusal in checked.refusals] or _loading_steps(
        task, known
    )
    return dry_run_outcome(task, *steps, *(f"note: {note}" for note in checked.notes))


def validate(task: Task) -> CommandOutput:
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


def unload(task: Task) -> CommandOutput:
    """Return what would be unloaded, or what blocks it."""
    record = run_directory.read_loaded(task.host, task.name, task.boot_id)
    loader = Loader(task.host)
    ours = loaded_by_nodeside(task, record, loader)
    decided = plan_unload(modules_to_unload((), record, ours), loader.modules.rows())
    steps = [f"unload {name}" for name in decided.order]
    if steps:
        after = _hook_steps(task.driver.spec.hooks.after_unload)
        steps = [*_before_unload(task), *steps, *after]
    only_held = all(item.obstacle is Obstacle.HELD for item in decided.blocked)
    if decided.blocked and not (only_held and task.driver.spec.services):
        steps = [f"fail: {item.module} is {item.obstacle.value}" for item in decided.blocked]
    return dry_run_outcome(
        task, *(steps or ["unload nothing: nodeside has loaded none of its modules"])
    )


def stop_services(task: Task) -> CommandOutput:
    """Return which services would be stopped."""
    running = [row["name"] for row in services.rows(task, None) if row["pids"]]
    steps = [f"stop {name}" for name in reversed(running)]
    return dry_run_outcome(task, *(steps or ["stop nothing: none of its services runs here"]))


def publish(task: Task, to: str | None, *, overwrite: bool) -> CommandOutput:
    """Return where the bundle would be published."""
    source = bundles.publish_target(task, to)
    bundle = bundles.require_cached(task, rungs.peek_in_cache(task))
    where = source.oci or source.directory or source.http
    replacing = ", replacing another one of that tag" if overwrite else ""
    return dry_run_outcome(task, f"publish {task.tag} ({bundle.digest}) to {where}{replacing}")
