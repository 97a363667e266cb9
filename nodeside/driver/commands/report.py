"""Format a `Report` for people (a table) and for machines (JSON, see docs/output.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodeside.driver.announce.documents import node_driver_document, node_labels
from nodeside.driver.bringup.journal import Journal, Report
from nodeside.driver.commands.outcome import CommandOutput, as_document
from nodeside.protocol.node_status import State, ready_marker
from nodeside.protocol.ready_file import ready_path
from nodeside.text.table import table


def as_outcome(report: Report, announced: Mapping[str, Any] | None = None) -> CommandOutput:
    """Return the report as a document and a table. `announced` is None if nothing was announced."""
    document = as_document(report) | {"announced": announced}
    return CommandOutput(document, text=as_table(report, announced), exit_code=report.exit_code)


def as_table(report: Report, announced: Mapping[str, Any] | None = None) -> str:
    """Return the report as text: outcome, rungs, checks, services, and the time of each stage."""
    labels = announced["labels"] if announced else {}
    head = [*_head_rows(report), *(("label", f"{key}={value}") for key, value in labels.items())]
    parts = [table(head)]
    if report.rungs:
        rows = [(v.rung.value, "served" if v.served else "-", v.why) for v in report.rungs]
        parts.append(table(rows, header=("RUNG", "", "WHY")))
    if report.checks:
        rows = [_check_row(check) for check in report.checks]
        parts.append(table(rows, header=("CHECK", "", "FOUND")))
    if report.services:
        services = [
            (s.name, "ready" if s.ready else "not ready", s.message) for s in report.services
        ]
        parts.append(table(services, header=("SERVICE", "STATE", "WHY")))
    if report.stages:
        stages = [(name, f"{seconds:.2f} s") for name, seconds in report.stages.items()]
        parts.append(table(stages, header=("STAGE", "TIME")))
    return "\n\n".join(parts)


def announcement_document(journal: Journal) -> dict[str, Any] | None:
    """Return what was last sent to the cluster, and the node's ready file and marker.

    Returns None if nothing was announced.
    """
    status = journal.announced
    if status is None:
        return None
    ready = status.state is State.READY
    return {
        "labels": node_labels(status),
        "nodeDriver": node_driver_document(status),
        "readyFile": str(ready_path(journal.task.host, status.driver)) if ready else "",
        "marker": ready_marker(status) if ready else "",
    }


def _head_rows(report: Report) -> list[tuple[str, str]]:
    rows = [
        ("driver", f"{report.driver} {report.version}"),
        ("kernel", report.kernel),
        ("state", report.state.value),
    ]
    if report.source:
        rows.append(("source", report.source.value))
    rows.append(("modules", ", ".join(report.modules)))
    rows += [("note", note) for note in report.notes]
    if report.message:
        rows.append(("reason", report.reason))
        rows.append(("message", report.message))
    if report.hint:
        rows.append(("hint", report.hint))
    return rows


def _check_row(check: Mapping[str, object]) -> tuple[str, str, str]:
    found = str(check.get("found", ""))
    expected = str(check.get("expected", ""))
    good = bool(check.get("ok"))
    finding = found if good else f"{found or 'nothing'}; expected {expected}"
    return str(check.get("name", "")), "ok" if good else "FAILED", finding
