"""The result of a verb: text for people, a document for machines, and an exit code.

docs/output.md describes the documents; a test compares it with what the verbs print.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeside.driver.kernel.boot_parameters import RequestedParameter, requested_parameters
from nodeside.driver.kernel.in_tree_effects import requested_parameters_in_tree
from nodeside.errors import ExitCode
from nodeside.protocol.module_names import kernel_name
from nodeside.spec.schema import camel_case
from nodeside.text.table import table
from nodeside.values import frozen

if TYPE_CHECKING:
    from nodeside.driver.ladder.task import Task


@frozen
class CommandOutput:
    """A result. `rows` are (what, value) for the table; `--output json` prints `document`."""

    document: Mapping[str, Any]
    rows: Sequence[Sequence[str]] = ()
    text: str = ""
    exit_code: ExitCode = ExitCode.OK

    def render_as(self, output: str) -> str:
        if output == "json":
            return json.dumps(self.document, indent=2)
        return self.text or table(self.rows)


def identity_fields(task: Task) -> dict[str, Any]:
    """Return the first fields of a document about one driver and one kernel."""
    return {
        "driver": task.name,
        "version": task.version,
        "kernel": as_document(task.kernel),
        "key": task.key,
        "tag": task.tag,
    }


def parameters_of(task: Task) -> tuple[RequestedParameter, ...]:
    """Return the parameters of the driver's modules, and of the in-tree modules around them.

    These are the modules that a load brings in because those of the bundle need them, and the
    conflicting ones that a roll-back puts back.
    """
    spec = task.driver.spec
    own = requested_parameters(spec.modules, task.command_line)
    if task.kernel != task.host.kernel:
        return own
    bundle = task.cache.describe(task.tag, task.name)
    needed = [name for each in bundle.manifest.modules for name in each.depends] if bundle else []
    others = [
        name
        for name in map(kernel_name, (*needed, *spec.conflicts.modules))
        if name not in task.wanted.names
    ]
    return (*own, *requested_parameters_in_tree(task.host, others)) if others else own


def parameter_rows(parameters: Sequence[RequestedParameter]) -> list[tuple[str, str]]:
    """Return the rows of a table with the parameters of the modules, if they have any."""
    rows = [each.in_words() for each in parameters]
    return [("parameters", "\n".join(rows))] if rows else []


def dry_run_outcome(task: Task, *lines: str) -> CommandOutput:
    """Return the result of a dry run."""
    document = {"driver": task.name, "tag": task.tag, "would": list(lines)}
    return CommandOutput(document, text="\n".join(f"would {line}" for line in lines))


def as_document(value: Any) -> Any:
    """Convert a dataclass to a JSON object with camelCase keys. Keys of a mapping are kept as is.

    Empty values are included, so that a reader can rely on every key.
    """
    if is_dataclass(value):
        return {
            camel_case(item.name): as_document(getattr(value, item.name)) for item in fields(value)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: as_document(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [as_document(item) for item in value]
    return value
