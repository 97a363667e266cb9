"""Labels and cordons of a plan, computed repeatedly until another pass changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from cluster.model.actions import Cordon, LabelNode
from cluster.model.labelmap import changed
from cluster.model.names import before_label
from cluster.model.snapshot import DaemonSetObject
from cluster.model.states import Place
from cluster.plan.builds.kernel_images import NO_IMAGE
from cluster.plan.context.context import DriverContext, Effects
from cluster.plan.rollout import drain
from cluster.plan.rollout.decisions import Decision, DrainStep, forgiven
from nodeside.contract import State, assigned_label, state_label

_LOOKS = 8  # maximum passes over the effects of our own labels; two are usual


def _nodes_labelled(context: DriverContext) -> Iterator[LabelNode]:
    """Yields one request for each node whose labels change."""
    for decision in context.rollout.decisions:
        member = decision.member
        if decision.revision is None and decision.step is DrainStep.GO and member.is_untouched:
            continue  # the usual case
        labels = drain.hold_labels(decision, context.driver.name, context.revisions.newest)
        why = decision.detail
        falls = decision.revision is None and context.fallbacks.applies_to(member)
        if (decision.revision is not None or falls) and (moves := _labels(context, decision)):
            labels, why = {**labels, **moves}, NO_IMAGE if falls else decision.row.why
        if labels:
            yield LabelNode(context.driver.name, member.node.name, labels, why)
    for member in forgiven(context.rollout.decisions, context.rollout.state):
        gone: dict[str, str | None] = {before_label(context.driver.name): None}
        yield LabelNode(context.driver.name, member.node.name, gone, "the rollout is over")


def _labels(context: DriverContext, decision: Decision) -> dict[str, str | None]:
    """Returns the changes of a node's labels; None removes a label.

    The state label of a node that moved describes its previous kernel. It is reset to `waiting`
    here, because nothing else can do so until the new pod runs.
    """
    driver, member, target = context.driver.name, decision.member, context.rollout.target(decision)
    goes = context.revisions.name_of(target) if target else ""
    before = member.before if decision.revision is None else decision.before
    wanted = {assigned_label(driver): goes, before_label(driver): before}
    if decision.place is Place.MOVED and state_label(driver) in member.node.labels:
        wanted[state_label(driver)] = State.WAITING.value
    there = member.node.labels
    return {key: value or None for key, value in wanted.items() if there.get(key, "") != value}


def to_rest(context: DriverContext) -> tuple[DriverContext, tuple[LabelNode | Cordon, ...]]:
    """Returns the context after all label changes, and the actions that make them.

    One pass is not always enough: an earlier report may hold again once its node is assigned back,
    which frees a slot for another node. The status is written last and must be true by then.
    """
    every: dict[str, LabelNode | Cordon] = {}
    for _ in range(_LOOKS):
        labelled: list[LabelNode | Cordon] = [*_nodes_labelled(context), *_nodes_cordoned(context)]
        if not labelled:
            break
        for action in labelled:
            earlier = every.get(action.node)
            every[action.node] = action if earlier is None else _both(earlier, action)
        context = _afterwards(context, labelled)
    return context, tuple(sorted(every.values(), key=lambda action: isinstance(action, Cordon)))


def _both(earlier: LabelNode | Cordon, later: LabelNode | Cordon) -> LabelNode | Cordon:
    as_now = earlier if isinstance(earlier, Cordon) else later
    return replace(as_now, labels={**earlier.labels, **later.labels})


def _nodes_cordoned(context: DriverContext) -> Iterator[Cordon]:
    """Yields cordons for nodes that this plan does not cordon already."""
    decisions, now = context.rollout.decisions, context.snapshot.now
    for cordon in drain.cordons(decisions, context.driver.name, now):
        if cordon.node not in context.effects.cordons:
            yield cordon


def _afterwards(context: DriverContext, labelled: Sequence[LabelNode | Cordon]) -> DriverContext:
    """Returns the context as it is after these labels are set."""
    nodes, cordons = dict(context.snapshot.nodes), dict(context.effects.cordons)
    for action in labelled:
        node = nodes[action.node]
        labels = changed(node.labels, action.labels)
        nodes[action.node] = replace(node, labels=labels, labelled=context.snapshot.now)
        if isinstance(action, Cordon):
            nodes[action.node] = replace(nodes[action.node], unschedulable=True)
            cordons[action.node] = action.why
    daemonsets = {key: d for key, d in context.snapshot.daemonsets.items() if is_left(context, d)}
    old = set(old_words(context, {action.node for action in labelled}))
    reports = context.snapshot.node_drivers
    if old:
        reports = {key: report for key, report in reports.items() if key not in old}
    status = {
        **context.resource.status,
        "observedGeneration": context.resource.generation,
        "revision": context.revisions.newest,
        "lastGoodRevision": context.rollout.state.good,
        "casualties": [each.row() for each in context.rollout.casualties],
    }
    snapshot = replace(context.snapshot, nodes=nodes, daemonsets=daemonsets, node_drivers=reports)
    effects = Effects(
        assignments={k.rpartition("-")[2]: at for k, at in context.rollout.desired.items()},
        fallbacks=context.fallbacks.by_assignment,
        cordons=cordons,
        refusals=context.toolkits.refusals,
    )
    resource = replace(context.resource, status=status)
    return replace(context, snapshot=snapshot, resource=resource, effects=effects)


def is_left(context: DriverContext, found: DaemonSetObject) -> bool:
    return found.driver != context.driver.name or found.name in context.rollout.desired


def old_words(context: DriverContext, labelled: Collection[str]) -> Iterator[str]:
    """Yields NodeDrivers that describe the revision a node is being assigned back to.

    Such a report is outdated but would count as new, on a node whose pod may never report.
    """
    for decision in context.rollout.decisions if labelled else ():
        member, report = decision.member, decision.member.report
        if report is None or member.node.name not in labelled or member.word is not None:
            continue
        target = context.rollout.target(decision)
        if target and (report.revision, report.boot_id) == (target.revision, member.node.boot_id):
            yield report.name
