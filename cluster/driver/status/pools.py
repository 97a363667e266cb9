"""A row of the status for each pool, with the first reason that applies to it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cluster.driver.nodes import DriverNode
from cluster.driver.status.inputs import StatusInputs, count_nodes
from cluster.driver.status.messages import (
    build_reason,
    cut_message,
    failures_message,
    few_of,
    kernel_unknown_message,
    node_activities,
    toolkit_message,
    toolkit_refused_message,
)
from cluster.driver.toolkit_image import Link
from cluster.driver.update import NodeDecision
from cluster.model.snapshot import Pool
from cluster.model.states import BuildProgress, Health, Phase


def pool_rows(inputs: StatusInputs) -> list[dict[str, Any]]:
    by_pool: dict[Pool, list[NodeDecision]] = {}
    for decision in inputs.decisions:
        by_pool.setdefault(decision.member.pool, []).append(decision)
    return [_pool_row(inputs, pool, by_pool[pool]) for pool in sorted(by_pool, key=pool_order)]


def pool_order(pool: Pool) -> tuple[str, str, str]:
    return pool.os_version, pool.kernel, pool.architecture


def _pool_row(
    inputs: StatusInputs, pool: Pool, decisions: Sequence[NodeDecision]
) -> dict[str, Any]:
    resolution = inputs.resolutions[pool]
    reason, message = next(_list_reasons(inputs, pool, decisions))  # the first that applies
    return {
        "architecture": pool.architecture,
        "osVersion": pool.os_version,
        "kernel": pool.kernel,
        "nodes": count_nodes(decisions),
        "toolkit": resolution.image,
        "link": resolution.link.value,
        "reason": reason,
        "message": cut_message(message),
    }


def _list_reasons(
    inputs: StatusInputs, pool: Pool, decisions: Sequence[NodeDecision]
) -> Iterator[tuple[str, str]]:
    if not pool.kernel:
        yield "KernelUnknown", kernel_unknown_message(decision.member for decision in decisions)
    build = inputs.builds.get(pool)
    if build is not None and (waiting := build_reason(build, decisions)):
        yield waiting
    if pool not in inputs.served:
        yield "ToolkitMissing", toolkit_message(inputs.resolutions[pool])
    members = (decision.member for decision in decisions)
    lacking = [member for member in members if member.health is not Health.WORKING]
    if broken := [member for member in lacking if member.health is Health.BROKEN]:
        yield _failure_reason(inputs, broken)
    if down := [member.node.name for member in lacking if member.health is Health.DOWN]:
        yield "NodesNotReady", f"{few_of(down)}: the node is not ready"
    fell_back = inputs.fell_back.get(pool, "")
    busy = [member for member in lacking if member.health is Health.BUSY]
    if busy and not fell_back:
        wait, total = _describe_wait(inputs), len(decisions)
        yield "NodesBusy", node_activities(busy, wait, creating=inputs.creating, total=total)
    if fell_back:
        yield "FellBack", fell_back
    if build is not None and build.progress is BuildProgress.BROKEN:
        yield "BuildingOnNodes", f"{build.words}; its nodes build for themselves"
    if inputs.resolutions[pool].link is Link.NONE and inputs.driver.spec.modules:
        yield "PrebuiltOnly", "prebuilt modules are used; there is no toolkit image to build with"
    yield "Ready", ""


def _describe_wait(inputs: StatusInputs) -> str:
    """Return what a node without a revision is doing."""
    match inputs.rollout.phase:
        case Phase.FIRST_CANARY if inputs.canaries:
            names = few_of(member.node.name for member in inputs.canaries)
            return f"waiting for the {'canaries' if inputs.canaries[1:] else 'canary'} {names}"
        case Phase.FIRST_STOPPED:
            return f"waiting, since it failed on {few_of(inputs.rollout.failed)}"
        case Phase.HELD:
            return "waiting, since the rollout is paused"
        case _:
            return "starting"


def _failure_reason(inputs: StatusInputs, broken: Sequence[DriverNode]) -> tuple[str, str]:
    if refused := toolkit_refused_message(broken, inputs.resolutions):
        return "ToolkitRefused", refused
    return "NodesFailed", failures_message(broken)
