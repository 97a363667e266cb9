"""`nodeside driver status`: the current state on this node, observed and not remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodeside.driver.bringup.observe import observe
from nodeside.driver.commands import services
from nodeside.driver.commands.outcome import (
    CommandOutput,
    as_document,
    identity_fields,
    parameter_rows,
    parameters_of,
)
from nodeside.driver.kernel.boot_parameters import RequestedParameter
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.ladder import plan
from nodeside.driver.ladder.task import Task
from nodeside.driver.node.holders import who_holds
from nodeside.driver.node.loaded_record import LoadedRecord
from nodeside.driver.node.modules import LoadedState
from nodeside.errors import ExitCode
from nodeside.protocol.ready_file import read_ready
from nodeside.text.table import table


def read_status(task: Task) -> CommandOutput:
    """Return the status. Exit code 0 only if this boot has a ready file and the kernel agrees.

    Nothing outside the node is queried: a stalled registry must not delay the answer.
    """
    observed = observe(task, Loader(task.host), query_sources=False)
    proof, why = plan.prove_loaded(task.wanted, observed)
    ready = read_ready(task.host, task.name, task.boot_id)
    modules = [_module_document(task, name, observed) for name in task.wanted.names]
    bundles = [cached.tag for cached in task.cache.list_manifests(task.name)]
    good = proof is not None and ready is not None and ready.version == task.version
    parameters = parameters_of(task)
    document = {
        **identity_fields(task),
        "ready": good,
        "readyFile": as_document(ready) if ready else None,
        "loaded": {"proven": proof is not None, "why": why},
        "record": _record_document(observed.record) if observed.record else None,
        "modules": modules,
        "parameters": as_document(parameters),
        "cache": bundles,
        "userspace": _userspace_version(task),
        "services": services.list_services(task, ready) if task.driver.spec.services else [],
    }
    code = ExitCode.OK if good else ExitCode.NOT_READY
    return CommandOutput(document, text=_status_text(task, document, parameters), exit_code=code)


def _userspace_version(task: Task) -> str | None:
    """Return the version of the files that containers get, None if there is none."""
    if task.driver.spec.userspace is None:
        return None
    from nodeside.driver.userspace.versions import Versions

    return Versions(task.host, task.name).current or None


def _record_document(record: LoadedRecord) -> dict[str, Any]:
    """Return loaded.json without its kernel log lines, which are for our own next look."""
    document = as_document(record)
    return {name: value for name, value in document.items() if name != "mark"}


def _module_document(task: Task, name: str, observed: plan.Observed) -> dict[str, Any]:
    state = observed.in_kernel.get(name) or LoadedState(name, initstate="not loaded")
    devices = frozenset(observed.record.devices if observed.record else ())
    return {
        "name": name,
        "state": state.initstate,
        "refcnt": state.refcnt,
        "buildId": state.build_id,
        "holders": who_holds(name, task.host, devices).in_words() if state.refcnt else "",
        "taint": state.taint,
    }


def _status_text(
    task: Task, document: dict[str, Any], parameters: Sequence[RequestedParameter]
) -> str:
    head = [
        ("driver", f"{task.name} {task.version}"),
        ("kernel", task.kernel.release),
        ("ready", "yes" if document["ready"] else "no"),
        ("loaded", document["loaded"]["why"]),
        ("bundle", f"{task.tag}{'' if task.tag in document['cache'] else ' (not in the cache)'}"),
    ]
    head += parameter_rows(parameters)
    if document["record"] and document["record"]["hook"]:
        hook = document["record"]["hook"]
        head.append(("hook", f"{hook} runs or comes next, or its process was killed in it"))
    if document["userspace"]:
        head.append(("files", str(task.host.userspace / task.name / document["userspace"])))
    rows = [
        (
            module["name"],
            module["state"],
            str(module["refcnt"]),
            module["buildId"][:12],
            module["holders"],
        )
        for module in document["modules"]
    ]
    columns = ("MODULE", "STATE", "REFCNT", "BUILD-ID", "HELD BY")
    parts = [
        table(head),
        table(rows, header=columns),
        services.services_table(document["services"]),
    ]
    return "\n\n".join(part for part in parts if part)
