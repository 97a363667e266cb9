"""What an option adds to the status of a Driver. Pure.

The status itself knows no option. But it knows every reason, and which of two is worse
(`COMPLAINTS` in conditions.py, `PROGRESS` in progress.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.model.states import BuildProgress


@dataclass(frozen=True, slots=True)
class StatusPart:
    """Part of a status. A message is "" if it does not apply.

    `fields` are fields of the status. `complaints` are messages of the condition Degraded and
    `progress` those of Progressing, by reason. `delays` is what holds up nodes whose turn it is.
    `notes` are added to the message of Ready once the driver works.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    complaints: Mapping[str, str] = field(default_factory=dict)
    progress: Mapping[str, str] = field(default_factory=dict)
    delays: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolBuild:
    """The build of a version that runs once for all nodes of a pool, as the status shows it."""

    version: str
    progress: BuildProgress
    words: str
    is_unscheduled: bool = False


def merge_parts(parts: Iterable[StatusPart]) -> StatusPart:
    """Return the parts as one; two options never have a field or a reason in common."""
    fields: dict[str, Any] = {}
    complaints: dict[str, str] = {}
    progress: dict[str, str] = {}
    delays: list[str] = []
    notes: list[str] = []
    for part in parts:
        fields.update(part.fields)
        complaints.update(part.complaints)
        progress.update(part.progress)
        delays.append(part.delays)
        notes += part.notes
    return StatusPart(fields, complaints, progress, "".join(delays), tuple(filter(None, notes)))


NOTHING = StatusPart()
