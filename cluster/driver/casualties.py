"""Casualties: the nodes that a change has broken or taken down, recorded in the Driver's status.

The failure recorded on a node is lost when the node gets another kernel or is replaced by another
machine. It is therefore also stored in the status, together with its revision, and counts against
`maxFailed` from there, whichever controller leads. Pure.

    Failed   it failed during its change, or went down repeatedly during it
    Lost     it went down during its change and was not seen again
    Down     it went down during its change, which may be a coincidence

Each entry lasts until the revision works on that node. `Down` also ends when the node comes back
with another kernel, since it then gets the good revision first.

All entries end with the revision. They also end when somebody changes the Driver while its rollout
is not paused, and with an order to retry (`retries.py`), which also forgets what a node reported
before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from cluster.driver.deadlines import NODE_DOWN
from cluster.driver.nodes import DriverNode, failure_message
from cluster.model.limits import truncate
from cluster.model.retries import Retries, retried_at
from cluster.model.snapshot import DriverObject
from cluster.model.states import Boot, Health, Place
from cluster.model.status_schema import CASUALTY_LIMIT
from nodeside.protocol.node_status import State
from nodeside.protocol.timestamps import parse_rfc3339, rfc3339

_MESSAGE_LIMIT: Final = 512  # maximum length of a recorded failure message in bytes


class CasualtyKind(Enum):
    """What happened to a casualty, as the status says it."""

    FAILED = "Failed"
    DOWN = "Down"
    LOST = "Lost"


@dataclass(frozen=True, slots=True)
class Casualty:
    """A node that a change has broken or taken down. `boot` is the boot in which it went down."""

    node: str
    kind: CasualtyKind
    since: str
    boot: str = ""
    message: str = ""

    def to_row(self) -> dict[str, Any]:
        """Return the entry as it appears in the Driver's status."""
        return {
            "node": self.node,
            "state": self.kind.value,
            "since": self.since,
            "bootId": self.boot,
            "message": self.message,
        }


def recorded_casualties(found: DriverObject, newest: str) -> tuple[Casualty, ...]:
    """Return the casualties of the newest revision that the status records."""
    status, driver = found.status, found.driver
    paused = driver is not None and driver.spec.rollout.paused
    is_changed = status.get("observedGeneration") != found.generation
    if status.get("revision") != newest or (is_changed and not paused):
        return ()
    every = (_parse_row(row) for row in status.get("casualties") or () if row.get("node"))
    return tuple(each for each in every if not _is_retried(each, found.retries))


def update_casualties(
    before: Iterable[Casualty],
    members: Sequence[DriverNode],
    newest: str,
    good: str,
    now: float,
    *,
    retries: Retries = (),
    with_first: bool = False,
) -> tuple[Casualty, ...]:
    """Return the casualties to record from now on; empty once the rollout is complete.

    `with_first` records them in a first rollout, too, where the driver worked nowhere before.
    """
    if newest == good:
        return ()
    old, every = {each.node: each for each in before}, with_first and not good
    placed = {
        m.node.name: (m, m.place(newest, good))
        for m in members
        if every or m.worked_with or m.node.name in old
    }
    updated = (
        _update_casualty(each, *placed.get(name, (None, Place.UNASSIGNED)))
        for name, each in old.items()
    )
    by_node = {each.node: each for each in updated if each is not None}
    for name, (member, place) in placed.items():
        if place is Place.NEWEST and (every or member.worked_with):
            new = _new_casualty(member, by_node.get(name), now, retries)
            by_node |= {name: new} if new else {}
    return tuple(sorted(by_node.values(), key=lambda each: each.node))


def limit_casualty_rows(
    every: Sequence[Casualty], members: Mapping[str, DriverNode]
) -> list[dict[str, Any]]:
    """Return rows for the status; of too many, those that nodes report themselves are left out."""
    broken = (each.node in members and members[each.node].health is Health.BROKEN for each in every)
    pairs = zip(broken, every, strict=True)
    order = sorted(pairs, key=lambda pair: (pair[0], pair[1].kind is CasualtyKind.DOWN))
    rows = [each.to_row() for _, each in order[:CASUALTY_LIMIT]]
    return sorted(rows, key=lambda row: str(row["node"]))


def _parse_row(row: Mapping[str, Any]) -> Casualty:
    kind = next(
        (each for each in CasualtyKind if each.value == row.get("state")), CasualtyKind.FAILED
    )
    words = (str(row.get(key) or "") for key in ("since", "bootId", "message"))
    return Casualty(str(row["node"]), kind, *words)


def _update_casualty(old: Casualty, member: DriverNode | None, place: Place) -> Casualty | None:
    """Return an earlier casualty as it is now; None if it is no longer one."""
    if member is not None and place is Place.NEWEST:
        return None if member.health is Health.WORKING else old
    if old.kind is not CasualtyKind.DOWN:
        return old
    if place is Place.UNASSIGNED:  # gone, or another machine of that name
        return replace(old, kind=CasualtyKind.LOST)
    return old if member is not None and member.health is Health.DOWN else None


def _is_retried(failed: Casualty, retries: Retries) -> bool:
    if not (retried := retried_at(retries, failed.node)):
        return False
    try:
        return parse_rfc3339(failed.since) <= retried
    except ValueError:
        return True


def is_failure_forgotten(member: DriverNode, retries: Retries) -> bool:
    """Return whether the failure that a node reports is older than an order to retry.

    A failure that the node does not report, such as a pod that cannot start, is happening now.
    """
    report = member.current_report
    if not retries or member.trouble or report is None:
        return False
    return report.time <= retried_at(retries, member.node.name)


def _new_casualty(
    member: DriverNode, old: Casualty | None, now: float, retries: Retries
) -> Casualty | None:
    """Return the new casualty of a node during its change; None if there is none."""
    if old is not None and old.kind is CasualtyKind.FAILED:
        return None
    since = old.since if old else rfc3339(now)
    name = member.node.name
    if member.health is Health.BROKEN:
        if is_failure_forgotten(member, retries):
            return None
        message = truncate(failure_message(member), _MESSAGE_LIMIT)
        return Casualty(name, CasualtyKind.FAILED, since, message=message)
    boot = _ended_boot(member)
    if not boot or (old is not None and old.boot == boot):
        return None
    if old is None:
        words = "it went down in the middle of its change"
        return Casualty(name, CasualtyKind.DOWN, since, boot, words)
    words = f"it went down again and again in the middle of its change, first at {since}"
    return Casualty(name, CasualtyKind.FAILED, since, boot, words)


def _ended_boot(member: DriverNode) -> str:
    """Return the boot in which the machine went down with its new revision; "" if it did not.

    If the driver had worked there for at least `NODE_DOWN` seconds, it is not blamed.
    """
    current, report = member.current_report, member.last_report
    if member.health is Health.DOWN:
        ready = current is not None and current.state == State.READY.value
        lasted = member.node.ready_since - current.time if current and current.time else NODE_DOWN
        return "" if ready and lasted >= NODE_DOWN else member.node.boot_id
    if member.health is not Health.BUSY or member.boot is not Boot.REBOOTED or report is None:
        return ""
    reported = member.at is not None and report.revision == member.at.revision
    return report.boot_id if reported and not member.was_ready else ""


def nodes_that_count_as_failed(
    changed: Sequence[DriverNode], every: Sequence[Casualty], retries: Retries = ()
) -> tuple[str, ...]:
    """Return the nodes that count against maxFailed.

    A single machine that was lost during its change may be a coincidence and does not count. If
    there are two or more, all of them count.
    """
    broken = [
        member.node.name
        for member in changed
        if member.health is Health.BROKEN and not is_failure_forgotten(member, retries)
    ]
    broken += [each.node for each in every if each.kind is CasualtyKind.FAILED]
    lost = [member.node.name for member in changed if member.is_given_up]
    lost += [each.node for each in every if each.kind is CasualtyKind.LOST]
    return tuple(dict.fromkeys(broken + lost if len(set(lost)) > 1 else broken))
