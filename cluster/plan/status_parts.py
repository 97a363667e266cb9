"""What the status of a Driver is made of: its inputs, and the parts of the options in use. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cluster.driver.hardware import near_device, similar_label
from cluster.driver.status.inputs import StatusInputs
from cluster.driver.status.messages import few_of
from cluster.driver.status.part import PoolBuild, StatusPart
from cluster.model.snapshot import Assignment, Pool
from cluster.options import conflicts
from cluster.options.after import dependency_problem
from cluster.options.devices import status as devices
from cluster.options.drain import status as drains
from cluster.options.unload import status as unloading
from cluster.options.unload.nodes import DriverUnload
from cluster.plan.context.context import DriverContext


def status_parts(context: DriverContext, unload: DriverUnload | None) -> Iterator[StatusPart]:
    """Yield the part of each option that the Driver uses, or that has left something."""
    spec, rollout, nodes = context.driver.spec, context.rollout, context.nodes
    if spec.after:
        reason, message = dependency_problem(context.snapshot, context.driver)
        yield StatusPart(complaints={reason: message})
    if nodes.contested_nodes or nodes.taken_nodes:
        yield conflicts.status_part(nodes.contested_nodes, nodes.taken_nodes)
    if spec.devices:
        announced = [decision.member.node for decision in rollout.announced_decisions]
        yield devices.status_part(spec.devices, announced)
    if spec.preflight:
        yield StatusPart({"preflight": [answer.to_row() for answer in context.supply.preflight]})
    if rollout.drains is not None:
        drained = replace(rollout.drains, decisions=rollout.announced_decisions)
        yield drains.status_part(drained, context.snapshot.occupancy, rollout.state.newest)
    if unload is not None and unload.leavers:
        yield unloading.status_part(unload)


def status_inputs(context: DriverContext) -> StatusInputs:
    """Return the inputs of a Driver's status."""
    return StatusInputs(
        found=context.resource,
        driver=context.driver,
        rollout=context.rollout.state,
        decisions=context.rollout.announced_decisions,
        resolutions=context.toolkits.resolutions,
        served=context.supply.served_pools,
        fell_back=_nodes_that_fell_back(context),
        versions={each: driver.spec.version for each, driver in context.revisions.drivers.items()},
        builds={
            pool: PoolBuild(
                state.build.driver.spec.version, state.progress, state.words, state.is_unscheduled
            )
            for pool, state in context.supply.newest_builds.items()
        },
        creating={
            pod.node: pod.creating
            for pod in context.snapshot.driver_pods_of(context.driver.name)
            if pod.creating and not pod.deleting
        },
        casualties=context.rollout.casualties,
        similar_label="" if context.rollout.announced_decisions else _similar_label(context),
        namespace=context.snapshot.settings.namespace,
    )


def _nodes_that_fell_back(context: DriverContext) -> dict[Pool, str]:
    """Return by pool which nodes build although those of the pool need not, and why."""
    reasons, nodes = context.fallbacks.by_assignment, dict[Assignment, list[str]]()
    for decision in context.rollout.decisions if reasons else ():
        at = context.rollout.target_of(decision)
        if at is not None and at.builds:
            nodes.setdefault(at, []).append(decision.member.node.name)
    return {at.pool: f"{few_of(names)}: {reasons[at]}" for at, names in nodes.items()}


def _similar_label(context: DriverContext) -> str:
    """Return a node's label that is similar to one that the Driver selects by and no node has."""
    nodes = context.snapshot.nodes.values()
    hardware = context.driver.spec.hardware
    wanted = hardware.node_selector.items()
    lacking = (each for each in wanted if not any(n.labels.get(each[0]) == each[1] for n in nodes))
    near = next(filter(None, (similar_label(nodes, *each) for each in lacking)), "")
    return near or near_device(nodes, hardware.pci)
