"""The trial's output on stdout: a table for people, a JSON document for machines.

docs/output.md describes the document; its keys are stable. `report` is the unchanged output of
`nodeside driver run --once --output json` on the node.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from nodeside.errors import ExitCode
from nodeside.log import escape_controls
from nodeside.text.table import table
from nodeside.trial.host.build import BY_HAND
from nodeside.trial.pod import CommandRun, TrialRun

_SHOWN = 1000  # characters of each line of a command's output
_FIRST = "first error: "  # as `nodeside driver build` prints it
_OURS = ("build", "boot")  # stages that are timed here
_EMULATION = {"kvm": "KVM", "tcg": "software emulation"}


def exit_code(runs: Sequence[TrialRun]) -> int:
    """Return the exit code of the last run that failed, 0 if none did."""
    return next((run.verdict for run in reversed(runs) if run.verdict), ExitCode.OK)


def as_json(target: str, runs: Sequence[TrialRun]) -> str:
    document = {
        "target": target,
        "runs": [_run_document(run) for run in runs],
        "exitCode": int(exit_code(runs)),
    }
    return json.dumps(document, indent=2)


def as_table(runs: Sequence[TrialRun], *, matrix: bool = False) -> str:
    """Return a table of each run, followed by a summary if there are several.

    In a matrix, a kernel on which the driver works appears only in the summary.
    """
    parts = [_run_table(run) for run in runs if not (matrix and run.verdict == ExitCode.OK)]
    if matrix or len(runs) > 1:
        stages = stages_of(runs)
        header = ("KERNEL", "RESULT", *(name.upper() for name in stages), "FIRST ERROR")
        parts.append(table([_summary_row(run, stages) for run in runs], header=header))
    if matrix:
        good = (run for run in runs if run.verdict == ExitCode.OK)
        notes = dict.fromkeys(note for run in good for note in _list_notes(run))
        parts += [f"note: {escape_controls(note)}" for note in notes]
    return "\n\n".join(parts)


def stage_seconds(run: TrialRun) -> dict[str, float]:
    """Return the seconds of a run by stage, in their order: build, boot, and the node side's."""
    theirs = dict(run.report.get("stages") or {})
    build = run.build_seconds + theirs.pop("build", 0.0)
    ours = dict(zip(_OURS, (build, run.boot_seconds), strict=True))
    return {name: value for name, value in ours.items() if value} | theirs


def stages_of(runs: Sequence[TrialRun]) -> list[str]:
    """Return the stages of several runs, in their order."""
    found = dict.fromkeys(name for run in runs for name in stage_seconds(run))
    return [*(name for name in _OURS if name in found), *(n for n in found if n not in _OURS)]


def first_error(run: TrialRun) -> str:
    """Return the line that a person would look for; "" if the driver got ready and works."""
    if run.verdict == ExitCode.OK:
        return ""
    failed = next((c for c in run.commands if c.exit_code), None)
    if run.exit_code == ExitCode.OK and failed is not None and not run.splats:
        return f"{shlex.join(failed.argv)}: exit code {failed.exit_code}"
    lines = str(run.report.get("message") or "").splitlines() or [*run.splats, "no report"]
    line = next((line for line in lines if _FIRST in line), lines[0])
    return line.rpartition(_FIRST)[2][:_SHOWN]


def _summary_row(run: TrialRun, stages: Sequence[str]) -> tuple[str, ...]:
    seconds = stage_seconds(run)
    times = (f"{seconds[name]:.1f} s" if name in seconds else "-" for name in stages)
    result = "ready" if run.verdict == ExitCode.OK else f"exit code {run.verdict}"
    return (run.kernel, result, *times, first_error(run))


def _run_document(run: TrialRun) -> dict[str, Any]:
    return {
        "kernel": run.kernel,
        "accelerator": run.accelerator,
        "bootSeconds": run.boot_seconds,
        "builtOn": run.built_on,
        "buildSeconds": run.build_seconds,
        "exitCode": run.exit_code,
        "report": run.report,
        "announcementMistakes": list(run.mistakes),
        "kernelComplaints": list(run.splats),
        "devices": run.devices,
        "notes": list(run.notes),
        "commands": [
            {"argv": list(command.argv), "exitCode": command.exit_code, "output": command.output}
            for command in run.commands
        ],
    }


def _run_table(run: TrialRun) -> str:
    report = run.report
    parts = [table(_head_rows(run))]
    if by_hand := _failure_message(run)[1]:  # unwrapped, to be copied
        parts.append(f"{BY_HAND}\n{escape_controls(by_hand)}")
    if rungs := report.get("rungs"):
        rows = [(r["rung"], "served" if r["served"] else "-", r["why"]) for r in rungs]
        parts.append(table(rows, header=("RUNG", "", "WHY")))
    if checks := report.get("checks"):
        parts.append(table([_check_row(check) for check in checks], header=("CHECK", "", "FOUND")))
    if services := report.get("services"):
        rows = [_service_row(service) for service in services]
        parts.append(table(rows, header=("SERVICE", "", "WHY")))
    if stages := report.get("stages"):
        rows = [
            (name, f"{seconds:.2f} s", _container_of_stage(name))
            for name, seconds in stages.items()
        ]
        parts.append(table(rows, header=("STAGE", "TIME", "WHERE")))
    if devices := _device_rows(run):
        parts.append(table(devices, header=("DEVICE", "", "NODES", "HEALTH")))
    if announced := _announcement_rows(run):
        parts.append(table(announced, header=("ANNOUNCED", "")))
    if run.commands:
        rows = [_command_row(command) for command in run.commands]
        parts.append(table(rows, header=("COMMAND", "", "OUTPUT")))
    return "\n\n".join(parts)


def _head_rows(run: TrialRun) -> list[tuple[str, str]]:
    report = run.report
    verdict = run.verdict
    code = ExitCode(verdict) if verdict in list(ExitCode) else None
    meaning = f": {code.meaning}" if code is not None else ""
    rows = [
        ("driver", f"{report.get('driver', '?')} {report.get('version', '')}".strip()),
        ("kernel", run.kernel),
        ("machine", _machine_in_words(run)),
        ("state", str(report.get("state", "no report"))),
    ]
    if run.built_on:
        words = {"host": "in the toolkit's root file system on this host", "node": "on the node"}
        rows.append(("build", words[run.built_on]))
    said = {**report, "message": _failure_message(run)[0]}
    if run.build_seconds and said.get("source") == "cached":
        said["source"] = "cached: it was built on this host just now"
    rows += [(key, str(said[key])) for key in ("source", "message", "hint") if said.get(key)]
    if modules := report.get("modules"):
        rows.append(("modules", ", ".join(modules)))
    rows += [("note", note) for note in _list_notes(run)]
    rows += [("kernel log", row) for row in run.splats]
    return [*rows, ("exit code", f"{verdict}{meaning}")]


def _list_notes(run: TrialRun) -> list[str]:
    return [str(note) for note in (*(run.report.get("notes") or ()), *run.notes)]


def _failure_message(run: TrialRun) -> tuple[str, str]:
    """Return the message of a run, and the command that repeats a failed build, "" if none."""
    message, _, by_hand = str(run.report.get("message") or "").partition(f"\n{BY_HAND}\n")
    return message, by_hand


def _machine_in_words(run: TrialRun) -> str:
    if not run.accelerator:
        return "not booted: there is nothing to load"
    return f"{_EMULATION[run.accelerator]}, booted in {run.boot_seconds} s"


def _container_of_stage(stage: str) -> str:
    return "toolkit container" if stage == "build" else "driver container"


def _check_row(check: Any) -> tuple[str, str, str]:
    found = str(check.get("found", ""))
    if check.get("ok"):
        return str(check.get("name", "")), "ok", found
    expected = str(check.get("expected", ""))
    return str(check.get("name", "")), "FAILED", f"{found or 'nothing'}; expected {expected}"


def _service_row(service: Any) -> tuple[str, str, str]:
    state = "ready" if service.get("ready") is True else "not ready"
    return service["name"], state, service["message"]


def _device_rows(run: TrialRun) -> list[tuple[str, ...]]:
    """Return the devices that `nodeside driver devices` found, or why it found none."""
    rows: list[tuple[str, str, str, str]] = []
    for found in run.devices["resources"] if run.devices else ():
        resource = found["resource"]
        for device in found["devices"]:
            nodes = " ".join(device["nodes"])
            rows.append((resource, device["id"], nodes, device["why"] or "healthy"))
        rows += [(resource, "", "", note) for note in found["notes"]]
    return [tuple(escape_controls(cell, keep="") for cell in row) for row in rows]


def _announcement_rows(run: TrialRun) -> list[tuple[str, str]]:
    """Return the announcements to the API server, and whether it would accept them."""
    announced = run.report.get("announced") or {}
    rows = [("label", f"{key}={value}") for key, value in (announced.get("labels") or {}).items()]
    node_driver = announced.get("nodeDriver") or {}
    if name := (node_driver.get("metadata") or {}).get("name"):
        status = node_driver.get("status") or {}
        rows.append(
            ("NodeDriver", f"{name}: {status.get('state', '')} {status.get('source') or ''}")
        )
    if announced.get("readyFile") and run.ready:
        rows.append(("ready file", str(announced["readyFile"])))
    if announced.get("marker"):
        rows.append(("log marker", str(announced["marker"])))
    if rows:
        verdict = "; ".join(run.mistakes) or "labels and NodeDriver are valid"
        rows.append(("checked", verdict))
    return rows


def _command_row(command: CommandRun) -> tuple[str, str, str]:
    good = "ok" if command.exit_code == 0 else f"exit {command.exit_code}"
    last = "\n".join(line[:_SHOWN] for line in command.output.rsplit("\n", 3)[-3:])
    return shlex.join(command.argv), good, last
