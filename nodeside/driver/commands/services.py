"""`nodeside driver services`: what runs of the services, and stop them."""

from __future__ import annotations

from typing import Any

from nodeside.driver.commands.outcome import CommandOutput, as_document, dry_run_outcome
from nodeside.driver.ladder.task import Task
from nodeside.driver.node import run_directory
from nodeside.driver.services import processes
from nodeside.driver.services.services import stop_all
from nodeside.protocol.ready_file import ReadyRecord, read_ready
from nodeside.text.table import table

_LOCK_TIMEOUT = 10.0  # seconds; a person waits less than a pod
_COLUMNS = ("SERVICE", "STATE", "RESTARTS", "PROCESSES", "MEMORY", "CPU")


def show_services(task: Task) -> CommandOutput:
    """Return what runs of each service, in the order of their start."""
    ready = read_ready(task.host, task.name, task.boot_id)
    services = list_services(task, ready)
    document = {"driver": task.name, "ready": ready is not None, "services": services}
    return CommandOutput(document, text=services_table(services) or "driver.yaml has no services")


def stop_services(task: Task) -> CommandOutput:
    """Stop the services. `nodeside driver run` starts them again, if it runs."""
    services = task.driver.spec.services
    with run_directory.hold_lock(task.host, task.name, timeout=_LOCK_TIMEOUT):
        stopped = stop_all(task.name, services)
    words = ", ".join(stopped) or "nothing: none of its services runs here"
    return CommandOutput({"driver": task.name, "stopped": stopped}, [("stopped", words)])


def would_stop_services(task: Task) -> CommandOutput:
    """Return which services would be stopped."""
    running = [row["name"] for row in list_services(task, None) if row["pids"]]
    steps = [f"stop {name}" for name in reversed(running)]
    return dry_run_outcome(task, *(steps or ["stop nothing: none of its services runs here"]))


def list_services(task: Task, ready: ReadyRecord | None) -> list[dict[str, Any]]:
    """Return a row of a document for each service.

    `restarts` is null while the driver is not ready.
    """
    restarts = ready.services if ready else {}
    found = []
    for service in task.driver.spec.services:
        running = processes.find_running(task.name, service.name)
        state = "running" if running.pids else "not running"
        row = {"name": service.name, "state": state, "restarts": restarts.get(service.name)}
        found.append(row | as_document(running))
    return found


def services_table(services: list[dict[str, Any]]) -> str:
    """Return the rows as a table, "" if there are none."""
    table_rows = [
        (
            str(row["name"]),
            str(row["state"]),
            "" if row["restarts"] is None else str(row["restarts"]),
            " ".join(map(str, row["pids"])),
            f"{row['memory'] / (1 << 20):.1f} MiB",
            f"{row['processor']:.1f} s",
        )
        for row in services
    ]
    return table(table_rows, header=_COLUMNS) if table_rows else ""
