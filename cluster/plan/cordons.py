"""The end of cordons: a node is schedulable again once no Driver holds it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cluster.model.actions import Action, Cordon, Uncordon
from cluster.model.names import CORDONED
from cluster.model.snapshot import Node, Snapshot
from cluster.options.after import dependents
from cluster.options.drain.labels import holders
from cluster.options.drain.pods import all_evicted
from nodeside.protocol.labels import assigned_label


def end_cordons(snapshot: Snapshot, actions: Collection[Action]) -> Iterator[Uncordon]:
    """Yield the end of each cordon of ours that no Driver holds, or that somebody else has ended.

    The label of a Driver that no longer exists holds nothing. A node that a Driver starts to drain
    in this same plan is left to the next plan.
    """
    begun = {action.node for action in actions if isinstance(action, Cordon)}
    for node in snapshot.nodes.values():
        if CORDONED not in node.labels or node.name in begun:
            continue
        held = dict(holders(node.labels))
        if not any(_keeps_cordoned(snapshot, name) for name in held.values()):
            gone = [key for key, name in held.items() if name not in snapshot.drivers]
            yield Uncordon(
                _driver_that_reports(snapshot, node), node.name, dict.fromkeys((CORDONED, *gone))
            )
        elif not node.unschedulable:
            yield Uncordon(
                _driver_that_reports(snapshot, node), node.name, {CORDONED: None}, opens=False
            )


def _keeps_cordoned(snapshot: Snapshot, name: str) -> bool:
    """Return whether a hold of this Driver keeps a node cordoned: that of one that evicts, or whose
    spec is invalid."""
    found = snapshot.drivers.get(name)
    if found is None or found.driver is None:
        return found is not None
    return bool(all_evicted((found.driver, *dependents(snapshot, found.driver))))


def _driver_that_reports(snapshot: Snapshot, node: Node) -> str:
    """Return the Driver that reports a failure to uncordon; "" if there is none.

    The Driver that cordoned the node is no longer known. Prefers one that evicts, on this node.
    """
    evicts = {d.name for d in snapshot.drivers.values() if d.driver and d.driver.spec.rollout.evict}
    here = {name for name in snapshot.drivers if assigned_label(name) in node.labels}
    names = sorted(evicts & here or here or evicts)
    return next(iter(names), "")
