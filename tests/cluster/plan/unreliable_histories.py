"""Histories in which the API server is not to be relied on: watches are late, writes are refused,
and what a leader of yesterday has sent arrives today.

A watch may be late with all but what the controller wrote itself: it waits for its own writes (see
loop.py). What it does by old news is tested as its patches are: a node whose labels are not
what the plan saw is left alone (see node_labels.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from cluster.model.actions import (
    Action,
    Apply,
    Cordon,
    Create,
    Delete,
    LabelNode,
    SetFinalizers,
    SetStatus,
    Uncordon,
    depends_on,
    lane_of,
    node_of,
    waits_for_all_nodes,
)
from cluster.model.lanes import STATUS, Lane
from cluster.model.snapshot import Snapshot
from tests.cluster.plan.histories import NODES, History

# The fields of a `Snapshot` that have a watch each.
_NODES, _DRIVERS, _DAEMONSETS = "nodes", "drivers", "daemonsets"
_NODE_DRIVERS, _REVISIONS = "node_drivers", "revisions"
WATCHES = (_NODES, _DRIVERS, _DAEMONSETS, _NODE_DRIVERS, _REVISIONS)
_KINDS = ("DaemonSet", "ConfigMap", "Driver")
LAGS = st.fixed_dictionaries({watch: st.integers(0, 4) for watch in WATCHES})
REFUSED = st.one_of(
    st.just(frozenset[str]()), st.frozensets(st.sampled_from([*_KINDS, *NODES[:4]]), max_size=3)
)


class Unreliable(History):
    """`seen` are the last worlds, the newest last; `wrote` is how many there were when the
    controller last wrote what a watch shows."""

    def __init__(self) -> None:
        super().__init__()
        self.deposed = False
        self.seen: list[Snapshot] = []
        self.wrote: dict[str, int] = dict.fromkeys(WATCHES, 0)

    @rule(lags=LAGS, refused=REFUSED)
    def plan_by_old_news(self, lags: Mapping[str, int], refused: frozenset[str]) -> None:
        """A webhook, a quota or an admission policy refuses writes to some kinds or nodes."""
        seen = self._as_watched(lags)
        planned = self.model.plan(seen=seen).actions
        self.carry_out(self._accepted(planned, seen, refused), seen)

    plan_by_old_news_again = rule(lags=LAGS, refused=REFUSED)(
        lambda self, lags, refused: self.plan_by_old_news(lags, refused)
    )

    @rule(lag=st.integers(1, 4))
    def a_late_request_arrives(self, lag: int) -> None:
        """Of a leader that was frozen after its last look, while another one led and wrote."""
        seen = self.seen[max(len(self.seen) - 1 - lag, 0)]
        labels = [a for a in self.model.plan(seen=seen).actions if isinstance(a, LabelNode)]
        self.deposed = True
        self.carry_out(self._accepted(labels, seen, ()), seen)
        self.deposed = False

    def check_budget(self, changed: set[str], seen: Snapshot) -> None:
        """A leader that does not know of the next one's writes cannot keep a budget with it."""
        if not self.deposed:
            super().check_budget(changed, seen)

    @invariant()
    def time_passes(self) -> None:
        self.seen.append(self.model.snapshot)

    def carry_out(self, done: Sequence[Action], seen: Snapshot) -> list[LabelNode]:
        changed = super().carry_out(done, seen)
        self.seen.append(self.model.snapshot)
        for action in done:
            if watch := _watch_of(action):
                self.wrote[watch] = len(self.seen) - 1
        return changed

    def _as_watched(self, lags: Mapping[str, int]) -> Snapshot:
        """What the controller knows: each kind as it was some time ago, all but its own writes."""
        newest = len(self.seen) - 1
        old: dict[str, Any] = {}
        for watch, lag in lags.items():
            then = self.seen[max(newest - lag, self.wrote[watch])]
            old[watch] = getattr(then, watch)
        return replace(self.model.snapshot, **old)

    def _accepted(
        self, planned: Sequence[Action], seen: Snapshot, refused: Collection[str]
    ) -> Sequence[Action]:
        """What the API server accepts, and the controller tries after what was refused."""
        lanes: set[Lane] = set()
        accepted: list[Action] = []
        for action in planned:
            if lanes & {*depends_on(action)} or waits_for_all_nodes(action, lanes):
                continue
            if _kind(action) in refused or node_of(action) in refused:
                lanes.add(_lane_of_refusal(action))
            elif not self._is_overtaken(action, seen):
                accepted.append(action)
        return accepted

    def _is_overtaken(self, action: Action, seen: Snapshot) -> bool:
        """A conflict, or something that is gone: neither stops what comes after it."""
        match action:
            case LabelNode() | Cordon() | Uncordon():
                there = self.model.nodes.get(action.node)
                then = seen.nodes[action.node].labels
                return there is None or any(
                    there.labels.get(key) != then.get(key) for key in action.labels
                )
            case Delete():
                return not self._is_there(action)
            case SetStatus() | SetFinalizers():
                return action.driver not in self.model.drivers
            case _:
                return False

    def _is_there(self, action: Delete) -> bool:
        there: dict[str, Mapping[str, Any]] = {
            "DaemonSet": self.model.daemonsets,
            "ConfigMap": {**self.model.revisions, **self.model.policies},
            "NodeDriver": self.model.node_drivers,
        }
        found = there[action.resource.kind].get(action.name)
        return found is not None and action.uid in ("", getattr(found, "uid", ""))


def _kind(action: Action) -> str:
    match action:
        case Apply() | Create():
            return str(action.document["kind"])
        case SetStatus() | SetFinalizers():
            return "Driver"
        case Delete():
            return action.resource.kind
        case _:
            return ""


def _lane_of_refusal(action: Action) -> Lane:
    """As the executor has it (see executor.py)."""
    if isinstance(action, SetStatus):
        return Lane(action.driver, STATUS)
    return lane_of(action).on_node(node_of(action))


def _watch_of(action: Action) -> str:
    if isinstance(action, LabelNode | Cordon | Uncordon):
        return _NODES
    of = {
        "DaemonSet": _DAEMONSETS,
        "ConfigMap": _REVISIONS,
        "NodeDriver": _NODE_DRIVERS,
        "Driver": _DRIVERS,
    }
    return of.get(_kind(action), "")
