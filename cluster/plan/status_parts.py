"""What the status of a Driver is made of: its inputs, and the parts of the options in use. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cluster.driver.hardware import near_label
from cluster.driver.status.inputs import StatusInputs
from cluster.driver.status.part import PoolBuild, StatusPart
from cluster.options import conflicts
from cluster.options.after import dependency_problem
from cluster.options.devices import status as devices
from cluster.options.drain import status as drains
from cluster.options.unload import status as unloading
from cluster.options.unload.nodes import DriverUnload
from cluster.plan.context.context import DriverContext


def status_parts(context: DriverContext, unload: DriverUnload | None) -> Iterator[StatusPart]:
    """Yields the part of each option that the Driver uses, or that has left something."""
    spec, rollout, nodes = context.driver.spec, context.rollout, context.nodes
    if spec.after:
        reason, message = dependency_problem(context.snapshot, context.driver)
        yield StatusPart(complaints={reason: message})
    if nodes.contested or nodes.taken:
        yield conflicts.status_part(nodes.contested, nodes.taken)
    if spec.devices:
        each = [decision.member.node for decision in rollout.announced]
        yield devices.status_part(spec.devices, each)
    if spec.preflight:
        yield StatusPart({"preflight": [answer.row() for answer in context.supply.preflight]})
    if rollout.drains is not None:
        drained = replace(rollout.drains, decisions=rollout.announced)
        yield drains.status_part(drained, context.snapshot.occupancy, rollout.state.newest)
    if unload is not None and unload.leavers:
        yield unloading.status_part(unload)


def report_of(context: DriverContext) -> StatusInputs:
    """Returns the inputs of a Driver's status."""
    return StatusInputs(
        found=context.resource,
        driver=context.driver,
        rollout=context.rollout.state,
        decisions=context.rollout.announced,
        resolutions=context.toolkits.resolutions,
        served=context.supply.served,
        fell_back={
            at.pool: context.fallbacks.by_assignment[at].why
            for at in context.rollout.desired.values()
            if at.builds
        },
        versions={each: driver.spec.version for each, driver in context.revisions.drivers.items()},
        builds={
            pool: PoolBuild(state.build.driver.spec.version, state.progress, state.words)
            for pool, state in context.supply.newest_builds.items()
        },
        casualties=context.rollout.casualties,
        near="" if context.rollout.announced else _similar_label(context),
    )


def _similar_label(context: DriverContext) -> str:
    """Returns a label of some node that is like one that the Driver selects in vain."""
    nodes = context.snapshot.nodes.values()
    wanted = context.driver.spec.hardware.node_selector.items()
    lacking = (each for each in wanted if not any(n.labels.get(each[0]) == each[1] for n in nodes))
    return next(filter(None, (near_label(nodes, *each) for each in lacking)), "")
