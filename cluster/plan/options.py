"""What the options of a Driver add to its status: each is asked only if it is used. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cluster.plan.context.context import DriverContext
from cluster.plan.nodes import neighbours
from cluster.plan.rollout.unload import DriverUnload
from cluster.plan.status import conflicts, drains, leaving, resources
from cluster.plan.status.part import StatusPart


def status_parts(context: DriverContext, unload: DriverUnload) -> Iterator[StatusPart]:
    """Yields the part of each option that the Driver uses, or that has left something."""
    spec, rollout, nodes = context.driver.spec, context.rollout, context.nodes
    if spec.after:
        reason, message = neighbours.dependency_problem(context.snapshot, context.driver)
        yield StatusPart(complaints={reason: message})
    if nodes.contested or nodes.taken:
        yield conflicts.status_part(nodes.contested, nodes.taken)
    if spec.devices:
        each = [decision.member.node for decision in rollout.announced]
        yield resources.status_part(spec.devices, each)
    if spec.preflight:
        yield StatusPart({"preflight": [answer.row() for answer in context.supply.preflight]})
    if rollout.drains.rows or any(m.drain.has_labels for m in context.members):
        drained = replace(rollout.drains, decisions=rollout.announced)
        yield drains.status_part(drained, context.snapshot.occupancy, rollout.state.newest)
    if unload.leavers:
        yield leaving.status_part(unload)
