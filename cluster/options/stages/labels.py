"""The node labels of stages: which are ready on a node, and the one that closes all of them there.

Pure. All these labels of a node change in one request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cluster.model.names import STAGE_READY, STAGES_CLOSED, closed_label, stage_label
from cluster.model.snapshot import Node
from cluster.model.states import Health
from cluster.options.stages.pods import is_open, label_keys
from nodeside.protocol.labels import state_label

if TYPE_CHECKING:
    from cluster.driver.nodes import DriverNode
    from cluster.options.stages.stage_plan import StagePlan


def list_label_changes(staging: StagePlan) -> Iterator[tuple[Node, dict[str, str | None], str]]:
    """Yield the label changes of each node and the reason."""
    held = {member.node.name for member in staging.inputs.ending}
    members = {member.node.name for member in staging.members}
    for member in staging.members:
        node = member.node
        if member.health is Health.DOWN:
            continue
        desired, why = _desired_stages(staging, member, held=node.name in held)
        yield from _label_changes(staging.driver, node, desired, why)
    for node in staging.inputs.snapshot.nodes.values():
        if node.name in members:
            continue
        if node.name in staging.inputs.occupied and is_open(staging.driver, node):
            yield from _label_changes(staging.driver, node, _ALL_CLOSED, _ENDING)
        elif state_label(staging.driver) not in node.labels:
            yield from _label_changes(staging.driver, node, {}, "the driver is gone from it")


_ALL_CLOSED: Final[Mapping[str, str]] = {"": STAGES_CLOSED}
_ENDING = "its stages end before the driver there changes"


def _desired_stages(
    staging: StagePlan, member: DriverNode, *, held: bool
) -> tuple[Mapping[str, str], str]:
    """Return the stages whose label the node should have; "" stands for the closing label."""
    if held:
        return _ALL_CLOSED, _ENDING
    if member.health is not Health.WORKING:
        labels = _ALL_CLOSED if closed_label(staging.driver) in member.node.labels else {}
        return labels, "the driver does not work there"
    ready: dict[str, str] = {}
    node = member.node
    for step in staging.steps:
        if step.on_nodes:
            passed = staging.has_passed(step, node)
            ready |= {step.name: STAGE_READY} if passed else {}
            node = _with_label(node, stage_label(staging.driver, step.name), passed=passed)
    return ready, "its stages go on"


def _with_label(node: Node, key: str, *, passed: bool) -> Node:
    """Return the node as the next stage finds it once this change is made."""
    if (node.labels.get(key) == STAGE_READY) == passed:
        return node
    others = {name: value for name, value in node.labels.items() if name != key}
    return replace(node, labels={**others, key: STAGE_READY} if passed else others)


def _label_changes(
    driver: str, node: Node, desired: Mapping[str, str], why: str
) -> Iterator[tuple[Node, dict[str, str | None], str]]:
    labels: dict[str, str | None] = {
        stage_label(driver, stage) if stage else closed_label(driver): value
        for stage, value in desired.items()
    }
    current = set(label_keys(driver, node))
    changes: dict[str, str | None] = {k: v for k, v in labels.items() if node.labels.get(k) != v}
    changes |= dict.fromkeys(sorted(current - labels.keys()))
    if changes:
        yield node, changes, why
