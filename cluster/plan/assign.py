"""Node labels and cordons of a plan: they assign nodes to DaemonSets and hold those that drain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cluster.driver.update import NodeDecision, nodes_to_forgive
from cluster.kube.resources import NODE_DRIVERS
from cluster.model.actions import Cordon, Delete, LabelNode
from cluster.model.names import before_label
from cluster.model.states import Place
from cluster.options.drain import drain
from cluster.options.drain.table import DrainStep
from cluster.plan.context.context import DriverContext
from nodeside.protocol.labels import assigned_label, state_label
from nodeside.protocol.node_status import State


def node_changes(context: DriverContext) -> tuple[LabelNode | Cordon, ...]:
    """Return one request for each node whose labels change; cordons are last."""
    actions: list[LabelNode | Cordon] = [*_label_nodes(context)]
    if context.rollout.drains is not None:
        actions += drain.cordon_nodes(context.rollout.drains, context.snapshot.now)
    changes: dict[str, LabelNode | Cordon] = {}
    for action in actions:
        earlier = changes.get(action.node)
        labels = {**earlier.labels, **action.labels} if earlier else action.labels
        changes[action.node] = replace(action, labels=labels)
    return tuple(sorted(changes.values(), key=lambda action: isinstance(action, Cordon)))


def _label_nodes(context: DriverContext) -> Iterator[LabelNode]:
    driver, rollout, drains = context.driver.name, context.rollout, context.rollout.drains
    newest, now = rollout.state.newest, context.snapshot.now
    for decision in rollout.decisions:
        member = decision.member
        step = drains.step_of(decision) if drains is not None else DrainStep.GO
        moves = decision.revision is not None
        fallback = "" if moves else context.fallbacks.reason_for(member)
        if step is DrainStep.GO and member.is_untouched and not moves and not fallback:
            continue  # the usual case
        labels: dict[str, str | None] = {}
        why = ""
        if drains is not None:
            labels, why = (
                drain.hold_labels(drains, decision, newest, now),
                drains.reason_of(decision),
            )
        if (moves or fallback) and (moved := _assignment_labels(context, decision)):
            labels, why = {**labels, **moved}, fallback or decision.row.why
        if labels:
            yield LabelNode(driver, member.node.name, labels, why)
    for member in nodes_to_forgive(rollout.decisions, rollout.state):
        gone: dict[str, str | None] = {before_label(driver): None}
        yield LabelNode(driver, member.node.name, gone, "the rollout is over")


def _assignment_labels(context: DriverContext, decision: NodeDecision) -> dict[str, str | None]:
    """Return the changes of a node's labels; None removes a label.

    The state label of a node that moved describes its previous kernel. It is reset to `waiting`
    here, because nothing else can do so until the new pod runs.
    """
    driver, member = context.driver.name, decision.member
    target, current = context.rollout.target_of(decision), member.node.labels
    assigned = context.revisions.name_of(target) if target else ""
    before = member.worked_with if decision.revision is None else decision.before
    labels = {assigned_label(driver): assigned, before_label(driver): before}
    if decision.place is Place.MOVED and state_label(driver) in current:
        labels[state_label(driver)] = State.WAITING.value
    return {key: value or None for key, value in labels.items() if current.get(key, "") != value}


def delete_outdated_reports(
    context: DriverContext, changes: tuple[LabelNode | Cordon, ...]
) -> Iterator[Delete]:
    """Delete NodeDrivers that describe the revision a node is being assigned back to.

    Such a report is outdated but would count as new, on a node whose pod may never report.
    """
    changing = {action.node for action in changes}
    for decision in context.rollout.decisions if changing else ():
        member, report = decision.member, decision.member.last_report
        if report is None or member.node.name not in changing or member.current_report is not None:
            continue
        target = context.rollout.target_of(decision)
        if target and (report.revision, report.boot_id) == (target.revision, member.node.boot_id):
            yield Delete(context.driver.name, NODE_DRIVERS, report.name)
