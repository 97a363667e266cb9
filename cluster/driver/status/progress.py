"""The progress of a Driver's nodes, including progress that is held up, as one table.

Pure. The first row with a message is the reason of the condition Progressing, and of Ready if there
is no complaint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Final, NamedTuple

from cluster.driver.nodes import DriverNode, failure_message
from cluster.driver.status.inputs import StatusInputs
from cluster.driver.status.messages import (
    few_of,
    node_activities,
    nodes_in_words,
    our_command,
    running_builds_message,
    unscheduled_builds_message,
)
from cluster.driver.status.part import NOTHING, StatusPart
from cluster.driver.update import NodeDecision
from cluster.driver.update_table import Act
from cluster.model.limits import truncate
from cluster.model.states import Health, Phase, Place
from nodeside.spec.model import Upgrade

_FAILURE_LIMIT: Final = 1000  # bytes; the commands after it are not to be cut off


class RolloutProgress(NamedTuple):
    """A kind of progress. `by_itself` means that it continues without user action."""

    reason: str
    by_itself: bool
    message: str


@dataclass(frozen=True)
class ProgressMessages:
    """The messages of each kind of progress, "" where it does not apply."""

    inputs: StatusInputs
    options: StatusPart

    def paused_message(self) -> str:
        if self.inputs.rollout.phase not in (Phase.HELD, Phase.PAUSED):
            return ""
        resume = f"to go on: {self._command('resume')}"
        state = f"{self._updated_in_words}; {self._working_in_words}"
        return f"paused by spec.rollout.paused; {state}; {resume}"

    def stopped_message(self) -> str:
        rollout, name = self.inputs.rollout, self.inputs.driver.name
        if rollout.phase not in (Phase.STOPPED, Phase.FIRST_STOPPED):
            return ""
        failure = truncate(self._failure_message_of(rollout.failed[0]), _FAILURE_LIMIT)
        if rollout.phase is Phase.FIRST_STOPPED:
            to_all = '{"spec":{"rollout":{"canary":0}}}'
            return (
                f"version {self.inputs.revision_name(rollout.newest)} failed on "
                f"{few_of(rollout.failed)}, before any version worked: "
                f"{failure}; "
                f"{self._updated_in_words}, and no other gets it; correct the spec; "
                f"to try this one again: {self._command('retry')}; without a canary: "
                f"kubectl patch driver {name} --type=merge -p '{to_all}'"
            )
        return (
            f"version {self.inputs.revision_name(rollout.newest)} failed on "
            f"{few_of(rollout.failed)}, where {self.inputs.revision_name(rollout.good)} worked: "
            f"{failure}; "
            f"correct the spec or go back to the old one: {self._command('undo')}; "
            f"to try this one again: {self._command('retry')}"
        )

    def unschedulable_message(self) -> str:
        if not self.inputs.builds:
            return ""
        stuck = unscheduled_builds_message(self.inputs.builds, self.inputs.decisions)
        return f"{self._updated_in_words}; {stuck}" if stuck else ""

    def building_message(self) -> str:
        if not self.inputs.builds:
            return ""
        goes_on = running_builds_message(self.inputs.builds, self.inputs.decisions)
        return f"{self._updated_in_words}; {goes_on}" if goes_on else ""

    def blocked_message(self) -> str:
        rollout = self.inputs.rollout
        if rollout.budget or not self.inputs.node_names(_waits_for_turn):
            return ""
        if not rollout.allowed:
            why = "maxUnavailable is 0, so no node where it works is changed"
            return f"{self._updated_in_words}; {why}"
        if not self._only_failures:
            return ""
        why = f"{self._failed_or_down}, and maxUnavailable is {rollout.allowed}"
        return f"{self._updated_in_words}; {why}"

    def reboots_message(self) -> str:
        under_way = self.inputs.rollout.phase in (Phase.CANARY, Phase.OPEN)
        if not under_way or self.inputs.driver.spec.upgrade is not Upgrade.ON_REBOOT:
            return ""
        return f"{self._updated_in_words}; the others change at their next reboot"

    def canary_message(self) -> str:
        rollout = self.inputs.rollout
        if rollout.phase is Phase.FIRST_CANARY and (trying := self.inputs.canaries):
            down = [m.node.name for m in trying if m.health is Health.DOWN]
            up = [m for m in trying if m.health is not Health.DOWN]
            doing = node_activities(up, creating=self.inputs.creating, total=rollout.nodes)
            words = "; ".join(filter(None, (doing, _are_down(down) if down else "")))
            first = f"tried first on {nodes_in_words(len(trying))}"
            return f"{self._updated_in_words}; {first}: {words}"
        if rollout.phase is not Phase.CANARY:
            return ""
        where = f"tried first on {nodes_in_words(rollout.canaries)}{self.options.delays}"
        return f"{self._updated_in_words}; {where}"

    def rollout_message(self) -> str:
        rollout = self.inputs.rollout
        if rollout.phase is not Phase.OPEN:
            return ""
        rest = len(rollout.unavailable) - len(self._down_names)
        down = f"; {_are_down(self._down_names)}" if self._down_names else ""
        under_way = f"{rest} of {rollout.allowed} under way{down}{self.options.delays}"
        return f"{self._updated_in_words}; {under_way}"

    def rollback_message(self) -> str:
        stale = self.inputs.node_names(_is_stale)
        newest = self.inputs.revision_name(self.inputs.rollout.newest)
        return f"changing to {newest}: {few_of(stale)}{self.options.delays}" if stale else ""

    def busy_message(self) -> str:
        busy = [
            member
            for member in self.inputs.not_working
            if member.health is Health.BUSY and member.pool in self.inputs.served
        ]
        creating, total = self.inputs.creating, self.inputs.rollout.nodes
        words = node_activities(busy, creating=creating, total=total)
        return f"{self._working_in_words}; {words}" if busy else ""

    def message_of_option(self, reason: str) -> str:
        message = self.options.progress.get(reason, "")
        return f"{self._updated_in_words}; {message}" if message else ""

    # --- shared by several of them ---------------------------------------------------------------

    def _command(self, verb: str) -> str:
        return our_command(f"{verb} {self.inputs.driver.name}", self.inputs.namespace)

    @cached_property
    def _updated_in_words(self) -> str:
        rollout, updated = self.inputs.rollout, self.inputs.counts["updated"]
        newest = self.inputs.revision_name(rollout.newest)
        return f"{updated} of {nodes_in_words(rollout.nodes)} have {newest}"

    @cached_property
    def _failing_members(self) -> Mapping[str, DriverNode]:
        """Returns the members that are failed or given up now; recorded ones may be neither."""
        members = (decision.member for decision in self.inputs.decisions)
        return {m.node.name: m for m in members if m.health is Health.BROKEN or m.is_given_up}

    def _failure_message_of(self, failed: str) -> str:
        """Return the node's own message, or the recorded one if it is gone or has changed."""
        recorded = {each.node: each.message for each in self.inputs.casualties}
        member = self._failing_members.get(failed)
        is_down = member is not None and member.is_given_up and not member.trouble
        if member is None or (is_down and failed in recorded):
            return recorded[failed]
        return failure_message(member)

    @cached_property
    def _working_in_words(self) -> str:
        ready = self.inputs.counts["ready"]
        return f"works on {ready} of {nodes_in_words(self.inputs.rollout.nodes)}"

    @cached_property
    def _unavailable_members(self) -> Sequence[DriverNode]:
        """Returns the members that count against the budget."""
        held = set(self.inputs.rollout.unavailable)
        members = (decision.member for decision in self.inputs.decisions)
        return [member for member in members if member.node.name in held]

    @cached_property
    def _down_names(self) -> Sequence[str]:
        return [
            member.node.name for member in self._unavailable_members if member.health is Health.DOWN
        ]

    @cached_property
    def _only_failures(self) -> bool:
        """Returns whether no member that uses the budget will recover by itself or be given up."""
        stays = [
            member.health is Health.BROKEN
            or (member.health is Health.DOWN and member.deadline == inf)
            for member in self._unavailable_members
        ]
        return bool(stays) and all(stays)

    @property
    def _failed_or_down(self) -> str:
        broken = [m.node.name for m in self._unavailable_members if m.health is Health.BROKEN]
        failed = f"{few_of(broken)} failed" if broken else ""
        down = _are_down(self._down_names) if self._down_names else ""
        return ", ".join(filter(None, (failed, down)))


# Reason, whether it continues by itself, message. From user decisions to transient states.
PROGRESS: Final[Sequence[tuple[str, bool, Callable[[ProgressMessages], str]]]] = (
    ("RolloutPaused", False, ProgressMessages.paused_message),
    ("RolloutStopped", False, ProgressMessages.stopped_message),
    ("Unschedulable", False, ProgressMessages.unschedulable_message),
    ("Building", True, ProgressMessages.building_message),
    ("Draining", True, lambda messages: messages.message_of_option("Draining")),
    ("NodesOccupied", False, lambda messages: messages.message_of_option("NodesOccupied")),
    ("RolloutBlocked", False, ProgressMessages.blocked_message),
    ("WaitingForReboot", False, ProgressMessages.reboots_message),
    ("Canary", True, ProgressMessages.canary_message),
    ("RollingOut", True, ProgressMessages.rollout_message),
    ("RollingOut", True, ProgressMessages.rollback_message),
    ("NodesBusy", True, ProgressMessages.busy_message),
)


def current_progress(inputs: StatusInputs, options: StatusPart = NOTHING) -> RolloutProgress | None:
    """Return the first row that applies; None if there is nothing in progress."""
    messages = ProgressMessages(inputs, options)
    for reason, by_itself, describe in PROGRESS:
        if message := describe(messages):
            return RolloutProgress(reason, by_itself, message)
    return None


def stopped_message(inputs: StatusInputs) -> str:
    """Return why a rollout was stopped, "" if it was not."""
    return ProgressMessages(inputs, NOTHING).stopped_message()


def _are_down(names: Sequence[str]) -> str:
    return f"{few_of(names)} {'is' if len(names) == 1 else 'are'} down"


def _waits_for_turn(decision: NodeDecision) -> bool:
    return decision.revision is None and decision.row.act in (Act.IN_TURN, Act.IN_TURN_OR_GOOD)


def _is_stale(decision: NodeDecision) -> bool:
    return decision.place is Place.STALE and decision.member.health is not Health.DOWN
